import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datafiles import TINY10, TINY100, tables, write_python

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import batches, load_benchmark
from kepsvgp.data.sets import cifar
from kepsvgp.errors import UserError

LAYOUTS = pytest.mark.parametrize("layout", [TINY10, TINY100], ids=lambda layout: layout.name)


def config(root: Path, layout: cifar.Layout, **settings) -> DataConfig:
    return DataConfig(name=layout.name, root=root, **settings)


@LAYOUTS
def test_images_and_labels_are_those_of_the_files(tmp_path, layout) -> None:
    write_python(tmp_path, layout)
    content = tables(layout)
    pixels = np.concatenate([content[name][0] for name in layout.train_files])
    labels = np.concatenate([content[name][1] for name in layout.train_files])

    benchmark = cifar.load(config(tmp_path, layout), layout)

    for part in (benchmark.train, benchmark.val):
        for position, row in enumerate(part.rows.tolist()):
            assert part.labels[position] == labels[row]
            # the file has the red, the green and the blue plane, each row by row
            expected = pixels[row].reshape(3, 32, 32).transpose(1, 2, 0)
            assert (part.raw(position) == expected).all()
    assert (benchmark.test.labels.numpy() == content[layout.test_file][1]).all()
    assert benchmark.classes == tuple(f"class {i}" for i in range(layout.num_classes))


@LAYOUTS
def test_splits_are_nine_to_one_disjoint_and_cover_the_training_set(tmp_path, layout) -> None:
    write_python(tmp_path, layout)
    total = layout.rows_train * len(layout.train_files)

    benchmark = cifar.load(config(tmp_path, layout), layout)

    assert len(benchmark.val) == total // 10
    both = torch.cat([benchmark.train.rows, benchmark.val.rows]).sort().values
    assert torch.equal(both, torch.arange(total))
    other = cifar.load(config(tmp_path, layout, seed=1), layout)
    assert not torch.equal(other.val.rows, benchmark.val.rows)


@pytest.mark.parametrize(
    ("layout", "mean", "std"),
    [
        (TINY10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        (TINY100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ],
)
def test_pixels_can_be_those_of_the_authors_program(tmp_path, layout, mean, std) -> None:
    write_python(tmp_path, layout)

    benchmark = cifar.load(config(tmp_path, layout, normalisation="program"), layout)

    for part in (benchmark.train, benchmark.val, benchmark.test):
        assert part.normalisation == (mean, std)


def test_train_limit_keeps_only_what_it_needs(tmp_path: Path) -> None:
    write_python(tmp_path, TINY10)
    whole = cifar.load(config(tmp_path, TINY10), TINY10)

    limited = cifar.load(config(tmp_path, TINY10, train_limit=3, val_limit=2), TINY10)

    assert torch.equal(limited.train.rows, whole.train.rows[:3])
    assert len(limited.train.pixels) == 5
    # a file of which no row is wanted is not even opened
    needed = {int(row) // 20 for row in (*limited.train.rows, *limited.val.rows)}
    unneeded = set(range(5)) - needed
    assert unneeded
    for number in unneeded:
        (tmp_path / TINY10.folder / f"data_batch_{number + 1}").unlink()
    cifar.load(config(tmp_path, TINY10, train_limit=3, val_limit=2), TINY10)


def test_missing_file_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data_batch_1 must exist.*data fetch cifar10"):
        load_benchmark(DataConfig(name="cifar10", root=tmp_path))


def test_swapped_file_is_refused_by_what_it_says_it_is(tmp_path) -> None:
    write_python(tmp_path, TINY10)
    folder = tmp_path / TINY10.folder
    shutil.copy(folder / "data_batch_3", folder / "data_batch_2")

    with pytest.raises(UserError, match=r"data_batch_2 must be .*it says that it is 'training"):
        cifar.load(config(tmp_path, TINY10), TINY10)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("data_batch_1", {b"labels": [0] * 19 + [10]}, "0 to 10, not 20 from 0 to 9"),
        ("data_batch_1", {b"labels": [0] * 19}, "19 labels"),
        ("data_batch_1", {b"labels": "words"}, "not a list of numbers"),
        ("data_batch_1", {b"data": np.zeros((20, 3071), np.uint8)}, r"\(20, 3071\)"),
        ("data_batch_1", {b"data": np.zeros((20, 3072), np.float32)}, "an array of type .f4"),
        ("data_batch_1", {b"data": [1, 2]}, "no array"),
        ("test_batch", {b"batch_label": b"training batch 1 of 5"}, "says that it is 'training"),
        # a file of CIFAR-100
        ("test_batch", {b"labels": None, b"fine_labels": []}, "no fields data and labels"),
    ],
)
def test_wrong_content_is_refused(tmp_path, name, changes, message) -> None:
    write_python(tmp_path, TINY10)
    path = tmp_path / TINY10.folder / name
    content = pickle.loads(path.read_bytes()) | changes
    if content[b"labels"] is None:
        del content[b"labels"]
    path.write_bytes(pickle.dumps(content, protocol=2))

    with pytest.raises(UserError, match=rf"{name} must .*{message}"):
        cifar.load(config(tmp_path, TINY10), TINY10)


@pytest.mark.realdata
def test_real_cifar10_has_the_splits_of_the_paper(data_root: Path) -> None:
    benchmark = load_benchmark(DataConfig(name="cifar10", root=data_root))

    sizes = [len(p) for p in (benchmark.train, benchmark.val, benchmark.test)]
    assert sizes == [45_000, 5_000, 10_000]
    assert benchmark.classes[:3] == ("airplane", "automobile", "bird")
    assert torch.bincount(benchmark.test.labels).tolist() == [1000] * 10
    both = torch.cat([benchmark.train.labels, benchmark.val.labels])
    assert torch.bincount(both).tolist() == [5000] * 10
    # the stated normalisation is that of these images
    inputs = torch.cat([batch.inputs for batch in batches(benchmark.val, 1000)])
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 0.02
    assert (inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 0.02


@pytest.mark.realdata
def test_real_cifar10_has_the_other_sets_out_of_distribution(data_root: Path) -> None:
    benchmark = load_benchmark(DataConfig(name="cifar10", root=data_root, train_limit=10))

    assert {"svhn", "cifar100"} <= set(benchmark.ood)
    for name in ("svhn", "cifar100"):
        others = benchmark.ood[name]
        assert len(others) == 10_000
        assert (others.labels == -1).all()
        assert others.normalisation == benchmark.train.normalisation
