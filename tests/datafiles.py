"""Small data sets in the formats of their publishers, written by the tests themselves."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from kepsvgp.data.sets import cifar

# the publisher's layout with fewer rows in each file
TINY10 = replace(cifar.CIFAR10, rows_train=20, rows_test=10)
TINY100 = replace(cifar.CIFAR100, rows_train=200, rows_test=10)


class Evil:
    """Writes a pickle that makes a folder when it is read by the usual reader."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"mkdir {self.trace}",)


def tables(layout: cifar.Layout, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random pixels and labels for each file of a data set."""
    random = np.random.default_rng(seed)
    content = {}
    for name in (*layout.train_files, layout.test_file):
        rows = layout.rows_test if name == layout.test_file else layout.rows_train
        pixels = random.integers(0, 256, (rows, cifar.PIXELS), dtype=np.uint8)
        content[name] = pixels, random.integers(0, layout.num_classes, rows)
    return content


def write_python(root: Path, layout: cifar.Layout, seed: int = 0) -> None:
    """The files of CIFAR, with random content."""
    folder = root / layout.folder
    folder.mkdir(parents=True)
    for name, (pixels, labels) in tables(layout, seed).items():
        number = name.rpartition("_")[2]
        part = f"{number} of {len(layout.train_files)}" if number.isdigit() else "1 of 1"
        kind = "testing" if name == layout.test_file else "training"
        content = {
            b"batch_label": f"{kind} batch {part}".encode(),
            layout.label_field.encode(): labels.tolist(),
            b"data": pixels,
            b"filenames": [b"x.png"] * len(labels),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = [f"class {i}".encode() for i in range(layout.num_classes)]
    meta = {layout.names_field.encode(): names}
    (folder / layout.meta_file).write_bytes(pickle.dumps(meta, protocol=2))


def write_svhn(path: Path, number: int = 7) -> np.ndarray:
    """A MATLAB file like SVHN's; returns the pixels (N, 3, 32, 32)."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(number) % 10 + 1).astype(np.uint8).reshape(-1, 1)
    savemat(path, {"X": pixels, "y": labels}, do_compression=True)
    return pixels.transpose(3, 2, 0, 1)


def write_vocabulary(path: Path, words: str) -> Path:
    """A BERT vocabulary of these words and of all letters, whole and as endings."""
    letters = "abcdefghijklmnopqrstuvwxyz.,!'"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split(), *letters]
    entries += [f"##{letter}" for letter in letters]
    path.write_text("\n".join(dict.fromkeys(entries)) + "\n", encoding="utf-8")
    return path


def write_encoder(folder: Path) -> Path:
    """A tiny BERT with random weights and its tokenizer, as Hugging Face lays them out."""
    from transformers import BertConfig, BertModel

    from kepsvgp.data.text.tokens import load_tokenizer

    folder.mkdir(parents=True)
    vocabulary = write_vocabulary(folder / "vocab.txt", "the cat sat on a mat dog ran")
    tokenizer = load_tokenizer(vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def sentence(name: str, number: int) -> str:
    """A sentence of its own length for each number of a file."""
    return f"The {name} {number} {'cat ' * (number % 9)}."


def write_cola(root: Path, sizes: tuple[int, int, int]) -> None:
    """CoLA's three raw files with so many sentences; the last one does not end its last line."""
    folder = root / "cola_public" / "raw"
    folder.mkdir(parents=True)
    names = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")
    for name, size in zip(names, sizes, strict=True):
        lines = [
            f"src\t{number % 3 and 1}\t{'' if number % 3 else '*'}\t{sentence(name, number)}"
            for number in range(size)
        ]
        ending = "" if name == "out_of_domain_dev" else "\n"
        (folder / f"{name}.tsv").write_text("\n".join(lines) + ending, encoding="utf-8")


def write_imdb(root: Path, reviews: int) -> None:
    """IMDB's four folders with so many reviews each, and the files that come beside them."""
    for part in ("train", "test"):
        for kind, stars in (("neg", 2), ("pos", 9)):
            folder = root / "aclImdb" / part / kind
            folder.mkdir(parents=True)
            for number in range(reviews):
                review = f"{part} {kind} {number}<br /><br />" + "The cat sat. " * (number % 7)
                path = folder / f"{number}_{stars + number % 2}.txt"
                path.write_text(review, encoding="utf-8")
    (root / "aclImdb" / "train" / "unsupBow.feat").write_text("0:1")


def write_images(folder: Path, counts: dict[str, int]) -> None:
    """So many random images of each class, in folders of their names, and a file that is none."""
    random = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            # neither square nor of one format or mode
            pixels = random.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels)
            if number % 3 == 1:
                picture = picture.convert("L")
            suffix = ("png", "jpg", "bmp")[number % 3]
            picture.save(folder / name / f"{number}.{suffix}")
    (folder / "notes.txt").write_text("not an image")
