from pathlib import Path

import numpy as np
import pytest
import torch

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import load_benchmark
from kepsvgp.data.examples import ImageExamples, Normalisation, image_examples
from kepsvgp.data.shifts import corruptions
from kepsvgp.data.shifts.corrupted import corrupted_sets
from kepsvgp.errors import UserError

SIZE = 7


@pytest.fixture
def test_set(generator: torch.Generator) -> ImageExamples:
    pixels = torch.randint(256, (SIZE, 3, 32, 32), generator=generator).to(torch.uint8)
    labels = torch.randint(10, (SIZE,), generator=generator)
    return image_examples(pixels, labels, Normalisation((0.5,) * 3, (0.25,) * 3))


def config(root: Path, **settings) -> DataConfig:
    return DataConfig(name="cifar10", root=root, **settings)


def write_official(folder: Path, labels: torch.Tensor, kind: str) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (5 * SIZE, 32, 32, 3), dtype=np.uint8)
    np.save(folder / f"{kind}.npy", images)
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5))
    return images


def test_official_arrays_are_preferred_and_read_by_severity(tmp_path, test_set) -> None:
    folder = tmp_path / "CIFAR-10-C"
    images = write_official(folder, test_set.labels, "fog")
    part = test_set.subset(torch.tensor([5, 2]))

    made = corrupted_sets(config(tmp_path), part, official=folder, official_size=SIZE)

    assert len(made.sets) == 75
    foggy = made.sets["fog/3"]
    assert (foggy.raw(0) == images[2 * SIZE + 5]).all()
    assert (foggy.raw(1) == images[2 * SIZE + 2]).all()
    assert torch.equal(foggy.rows, part.rows)
    assert torch.equal(foggy.labels, part.labels)
    # the other kinds are made here, and that is said
    assert "fog" not in made.notes[0].text
    assert "frost" in made.notes[0].text
    generated_only = config(tmp_path, corruptions="generated")
    made = corrupted_sets(generated_only, part, official=folder, official_size=SIZE)
    assert (made.sets["fog/3"].raw(0) != images[2 * SIZE + 5]).any()
    assert "generated, not the official" in made.notes[0].text


def test_official_arrays_of_another_shape_or_set_are_refused(tmp_path, test_set) -> None:
    folder = tmp_path / "CIFAR-10-C"
    write_official(folder, 9 - test_set.labels, "fog")
    np.save(folder / "snow.npy", np.zeros((5 * SIZE, 32, 32), np.uint8))
    (folder / "frost.npy").write_bytes((folder / "fog.npy").read_bytes()[:5000])
    np.save(folder / "contrast.npy", np.array([{"an": "object"}]), allow_pickle=True)

    made = corrupted_sets(config(tmp_path), test_set, official=folder, official_size=SIZE)

    with pytest.raises(UserError, match=r"labels\.npy must be .*not those of the test set"):
        made.sets["fog/1"]
    for kind in ("snow", "frost", "contrast"):
        with pytest.raises(UserError, match=rf"{kind}\.npy must be"):
            made.sets[f"{kind}/1"]


def test_generated_sets_are_kept_on_disk_by_content_and_seed(tmp_path, test_set) -> None:
    first = corrupted_sets(config(tmp_path), test_set).sets["contrast/5"]
    (file,) = (tmp_path / "generated").rglob("*.npy")
    stamp = file.stat().st_mtime_ns

    again = corrupted_sets(config(tmp_path), test_set).sets["contrast/5"]

    assert torch.equal(first.pixels, again.pixels)
    assert file.stat().st_mtime_ns == stamp
    corrupted_sets(config(tmp_path, seed=1), test_set).sets["contrast/5"]
    corrupted_sets(config(tmp_path, corruption_limit=3), test_set).sets["contrast/5"]
    assert len(list((tmp_path / "generated").rglob("contrast-5.npy"))) == 3
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"contrast-5\.npy must hold"):
        corrupted_sets(config(tmp_path), test_set).sets["contrast/5"]


def test_limit_and_absence_are_noted(tmp_path, test_set) -> None:
    limited = corrupted_sets(config(tmp_path, corruption_limit=3), test_set)
    assert "first 3 of 7" in limited.notes[1].text
    assert len(limited.sets["fog/1"]) == 3
    none = corrupted_sets(config(tmp_path, corruptions="none"), test_set)
    assert len(none.sets) == 0
    assert none.notes


def test_digits_have_all_corruptions_and_write_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KEPSVGP_DATA", str(tmp_path))
    benchmark = load_benchmark(DataConfig(name="digits"))

    assert len(benchmark.shifts) == 75
    for kind in corruptions.KINDS:
        corrupted = benchmark.shifts[f"{kind}/5"]
        assert corrupted.shape == benchmark.image_shape
        assert torch.equal(corrupted.labels, benchmark.test.labels)
        assert (corrupted.raw(0) != benchmark.test.raw(0)).any()
    assert any("generated" in note.text for note in benchmark.notes)
    assert not list(tmp_path.iterdir())
