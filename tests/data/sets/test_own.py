import csv
import os
import random
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from datafiles import write_images
from PIL import ExifTags, Image, ImageOps

from kepsvgp.config.sections import DataConfig
from kepsvgp.data import load_benchmark, pictures
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.data.sets.own import stratified_split
from kepsvgp.errors import UserError


def write_table(path: Path, rows: list[tuple[str, str]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["id", "text", "label"])
        writer.writerows([(number, *row) for number, row in enumerate(rows)])


def images(root: Path, **settings: object) -> DataConfig:
    return DataConfig(name="images", path=root / "pictures", root=root, **settings)


ROWS = [(f"text, number {i}\nwith a line break", ("bad", "fine")[i % 2]) for i in range(40)]


def parts(benchmark):
    return benchmark.train, benchmark.val, benchmark.test


def test_images_in_class_folders_are_split_in_proportion(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", {"cat": 20, "dog": 10, ".hidden": 1})

    benchmark = load_benchmark(images(tmp_path, image_size=16))

    assert benchmark.classes == ("cat", "dog")
    assert benchmark.image_shape == (3, 16, 16)
    counts = [torch.bincount(part.labels).tolist() for part in parts(benchmark)]
    assert counts == [[14, 7], [2, 1], [4, 2]]
    rows = torch.cat([part.rows for part in parts(benchmark)])
    assert torch.equal(rows.sort().values, torch.arange(30))
    inputs = benchmark.train.inputs(torch.arange(21))
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert len(benchmark.shifts["fog/1"]) == 6
    assert benchmark.split_record()["normalisation"]["mean"]


def test_images_divided_by_the_user_stay_divided(tmp_path: Path) -> None:
    for part, number in (("train", 10), ("test", 3)):
        write_images(tmp_path / "pictures" / part, {"a": number, "b": number})
    config = images(tmp_path, image_size=8, grayscale=True)

    benchmark = load_benchmark(config)
    assert [len(part) for part in parts(benchmark)] == [18, 2, 6]
    assert benchmark.image_shape == (1, 8, 8)
    assert int(benchmark.train.rows.max()) < 20 <= int(benchmark.test.rows.min())

    write_images(tmp_path / "pictures" / "val", {"a": 2, "b": 2})
    assert [len(part) for part in parts(load_benchmark(config))] == [20, 4, 6]


def test_class_may_be_called_train(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", {"bus": 10, "car": 10, "train": 10})

    benchmark = load_benchmark(images(tmp_path, image_size=8))

    assert benchmark.classes == ("bus", "car", "train")


def test_image_limit_opens_only_what_it_needs(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", {"a": 10, "b": 10})
    limits: dict = {"train_limit": 4, "val_limit": 1, "test_limit": 1}
    config = images(tmp_path, **limits)
    used = load_benchmark(config)
    names = sorted(p for c in "ab" for p in (tmp_path / "pictures" / c).iterdir())
    kept = set(torch.cat([part.rows for part in parts(used)]).tolist())
    for row, path in enumerate(names):
        if row not in kept:
            path.write_bytes(b"no picture at all")

    again = load_benchmark(config)

    assert torch.equal(again.train.pixels, used.train.pixels)
    with pytest.raises(UserError, match=r"must be an image .* Mend it or take"):
        load_benchmark(config.model_copy(update={"train_limit": None}))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, "there is nothing at .*/pictures"),
        (lambda root: root.touch(), "is not a folder"),
        (lambda root: root.mkdir(), "one subfolder per class"),
        (lambda root: write_images(root, {"only": 9}), "two classes or more; it has only 'only'"),
        (lambda root: write_images(root, {"a": 9, "b": 0}), "b must hold images"),
        (lambda root: write_images(root, {"a": 9, "b": 2}), "enough examples of each class"),
        (lambda root: write_images(root / "train", {"a": 9, "b": 9}), "a folder test beside"),
        (
            lambda root: [write_images(root / part, {"a": 9, "b": 9}) for part in ("train", "val")],
            r"it has only train, val\. Add test, or set data\.path to .*train to",
        ),
        (
            lambda root: [
                write_images(root / part, {"a": 9, other: 9})
                for part, other in (("train", "b"), ("test", "c"))
            ],
            "'c' is not among a, b",
        ),
    ],
)
def test_wrong_image_folders_are_refused(tmp_path: Path, prepare, message: str) -> None:
    prepare(tmp_path / "pictures")

    with pytest.raises(UserError, match=message):
        load_benchmark(images(tmp_path))


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_table_of_texts_is_a_benchmark(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / f"mine.{suffix}"
    write_table(path, ROWS, "\t" if suffix == "tsv" else ",")

    benchmark = load_benchmark(DataConfig(name="csv", path=path, root=tmp_path))

    assert benchmark.classes == ("bad", "fine")
    assert [len(part) for part in parts(benchmark)] == [28, 4, 8]
    for part in parts(benchmark):
        for position, row in enumerate(part.rows.tolist()):
            assert part.raw(position) == ROWS[row][0]
            assert part.labels[position] == row % 2
    seeded = DataConfig(name="csv", path=path, root=tmp_path, seed=1)
    assert not torch.equal(load_benchmark(seeded).test.rows, benchmark.test.rows)


@pytest.mark.parametrize(
    "names", [tuple(map(str, range(11))), ("7", "1" * 5_000)], ids=["numbers", "long"]
)
def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path, names) -> None:
    """A number of thousands of digits is a name."""
    pytest.importorskip("tokenizers")
    write_table(tmp_path / "t.csv", [("text", names[i % len(names)]) for i in range(110)])

    benchmark = load_benchmark(DataConfig(name="csv", path=tmp_path / "t.csv", root=tmp_path))

    assert benchmark.classes == names


@pytest.mark.parametrize("orientation", range(10))
def test_photograph_is_turned_upright_as_pillow_turns_it(orientation, tmp_path: Path) -> None:
    pixels = np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3)
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=about)

    with Image.open(tmp_path / "a.png") as image:
        expected = np.array(ImageOps.exif_transpose(image))

    assert np.array_equal(np.array(pictures.open_upright(tmp_path / "a.png")), expected)


def test_photograph_with_damaged_words_about_it_is_read_or_refused(tmp_path: Path) -> None:
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = 6
    about[ExifTags.Base.ImageDescription] = "some words about it"
    about[ExifTags.Base.XResolution] = 72.0
    path = tmp_path / "a.jpg"
    Image.new("RGB", (6, 4)).save(path, exif=about)
    content, chance = path.read_bytes(), random.Random(0)
    read = 0
    for _ in range(500):
        damaged = bytearray(content)
        # where the words are
        damaged[chance.randrange(20, 160)] = chance.choice((0, 1, 2, 4, 5, 12, 255))
        path.write_bytes(damaged)
        with suppress(UserError), warnings.catch_warnings():
            # of what Pillow leaves out
            warnings.simplefilter("ignore")
            read += pictures.open_upright(path).size in ((4, 6), (6, 4))
    assert read > 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,lable\na,b\n", "are: text, lable. Did you mean lable. Name .*--label-column"),
        ("text,label\n", "at least one row"),
        ("text,label\nhello,1\n ,0\n", "line 3: it has no text"),
        ("text,label\nhello\n", "line 2: it has no label"),
        ("text,label\nhello,1\nworld,1\n", "two classes or more; it has only '1'"),
        ("text,label\nhello,1\nwell, yes,0\n", "line 3: .* Put texts with a comma in quotes"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "mine.csv").write_text(content)

    with pytest.raises(UserError, match=message):
        load_benchmark(DataConfig(name="csv", path=tmp_path / "mine.csv", root=tmp_path))


def test_stratified_split_is_seeded_and_has_every_class_in_every_part() -> None:
    labels = torch.tensor([0] * 50 + [1] * 5 + [2] * 3)

    first = stratified_split(labels, val=0.1, test=0.2, seed=0, source="x")
    again = stratified_split(labels, val=0.1, test=0.2, seed=0, source="x")
    other = stratified_split(labels, val=0.1, test=0.2, seed=1, source="x")

    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)
    assert torch.equal(first.rows.sort().values, torch.arange(58))
    assert all(set(labels[part].tolist()) == {0, 1, 2} for part in first)


def test_changed_texts_and_images_have_another_record(tmp_path: Path) -> None:
    """Although their rows, of which the splits are made, are the same."""
    write_table(tmp_path / "texts.csv", ROWS)
    write_images(tmp_path / "images", {"cat": 12, "dog": 12})

    def records() -> list[dict]:
        texts = DataConfig(name="csv", path=tmp_path / "texts.csv", root=tmp_path)
        images = DataConfig(name="images", path=tmp_path / "images", root=tmp_path, image_size=8)
        return [load_benchmark(config).split_record() for config in (texts, images)]

    before = records()
    assert all(map(is_same_split, before, records()))
    # the labels stay in their order
    write_table(tmp_path / "texts.csv", [*ROWS[2:], *ROWS[:2]])
    cats = tmp_path / "images" / "cat"
    (cats / "0.png").rename(cats / "0.old")
    (cats / "3.png").rename(cats / "0.png")
    (cats / "0.old").rename(cats / "3.png")
    for then, now in zip(before, records(), strict=True):
        assert then["checksums"] == now["checksums"]
        assert not is_same_split(then, now)


def test_tables_divided_by_the_user_stay_divided(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write_table(tmp_path / "train.csv", ROWS[:10])
    write_table(tmp_path / "test.csv", ROWS[10:20])
    config = DataConfig(name="csv", path=tmp_path, root=tmp_path)
    benchmark = load_benchmark(config)
    assert [len(part) for part in parts(benchmark)] == [8, 2, 10]
    assert int(benchmark.test.rows.min()) == 10

    # sorted by class, and yet a limited part has all of them; a whole one keeps its order
    write_table(tmp_path / "val.csv", sorted(ROWS[20:], key=lambda row: row[1]))
    limited = load_benchmark(config.model_copy(update={"val_limit": 10}))
    assert set(limited.val.labels.tolist()) == {0, 1}
    assert load_benchmark(config).val.rows.tolist() == list(range(10, 30))

    write_table(tmp_path / "train.tsv", ROWS[:20], "\t")
    with pytest.raises(UserError, match=r"train\.csv and train\.tsv"):
        load_benchmark(config)


def test_texts_and_images_in_two_parts_are_told(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", ROWS[:20])
    write_table(tmp_path / "test.csv", ROWS[17:30])
    write_images(tmp_path / "train", {"cat": 12, "dog": 12})
    write_images(tmp_path / "test", {"cat": 3, "dog": 2})
    images = DataConfig(name="images", path=tmp_path, root=tmp_path, image_size=8)
    texts = DataConfig(name="csv", path=tmp_path, root=tmp_path, val_fraction=0.05)

    (note,) = load_benchmark(images).notes[-1:]

    assert "images of the test set are in the training set too" in note.text
    assert any("of 13 texts" in note.text for note in load_benchmark(texts).notes)


def test_exchanged_images_of_equal_size_and_time_are_read_again(tmp_path: Path) -> None:
    for name, value in (("cat", 10), ("dog", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            path = tmp_path / "pictures" / name / f"{number}.bmp"
            Image.new("L", (8, 8), value).save(path)
            os.utime(path, (1e9, 1e9))
    config = images(tmp_path, image_size=8, grayscale=True)
    before = load_benchmark(config).split_record()

    first, second = (tmp_path / "pictures" / name / "0.bmp" for name in ("cat", "dog"))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)

    after = load_benchmark(config)
    assert not is_same_split(before, after.split_record())
    for part in parts(after):
        for position, row in enumerate(part.rows.tolist()):
            # those of the dogs come behind the twelve of the cats
            is_bright = (row >= 12) != (row in (0, 12))
            assert int(part.raw(position).max()) == (200 if is_bright else 10)
