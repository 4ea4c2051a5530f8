"""Sets of inputs that a model was not trained for, and how near they are to what it was."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.examples import Examples
from kepsvgp.data.shifts import foreign_texts
from kepsvgp.data.text.prepare import reader

# so many texts of each kind
SIZE = 1000
_NEAR = ("cifar10", "cifar100", "word_order", "imdb_sentences", "cola_sentences")


def distance(name: str) -> Literal["near", "far"]:
    """Near sets have inputs of the same kind: other objects, other sentences, the same words."""
    return "near" if name.rpartition("/")[2] in _NEAR else "far"


def for_texts(
    config: DataConfig, root: Path, own: Callable[[], Sequence[str]]
) -> dict[str, Callable[[], Examples]]:
    """From texts of the model's own kind, from the other benchmark if it is there, and from code.

    All are seeded with the data's seed.
    """
    seed = config.seed

    made: dict[str, Callable[[], list[str]]] = {
        "word_order": lambda: foreign_texts.word_order(list(own()), seed),
        "random_words": lambda: foreign_texts.random_words(list(own()), seed),
        "other_script": lambda: foreign_texts.other_script(list(own()), seed),
        "other_language": lambda: foreign_texts.other_language(SIZE, seed),
        "program_code": lambda: foreign_texts.program_code(SIZE, seed),
    }
    if config.name == "cola" and (root / "aclImdb").is_dir():
        made["imdb_sentences"] = partial(_imdb_sentences, root, seed)
    if config.name == "imdb" and (root / "cola_public").is_dir():
        made["cola_sentences"] = partial(_cola_sentences, root)

    def examples(make: Callable[[], list[str]]) -> Examples:
        return reader(config)(make())

    return {name: partial(examples, make) for name, make in made.items()}


def _imdb_sentences(root: Path, seed: int) -> list[str]:
    from kepsvgp.data.sets import imdb

    files = sorted((root / imdb.FOLDER / "test").rglob("*.txt"))
    # about one review in three has no sentence of the right length at the place that is drawn
    some = files[:: max(1, len(files) // (2 * SIZE))]
    reviews = [imdb.clean(file.read_text(encoding="utf-8")) for file in some]
    return foreign_texts.sentences(reviews, SIZE, seed)


def _cola_sentences(root: Path) -> list[str]:
    from kepsvgp.data.sets import cola

    sizes = cola.Sizes()
    return cola.read(root / cola.FOLDER / "in_domain_dev.tsv", sizes.in_domain_dev).texts
