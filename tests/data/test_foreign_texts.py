"""Texts of another kind: seeded, of the right size, and foreign in the way that they say."""

import pytest

from kepsvgp.data.sets.foreign import distance
from kepsvgp.data.shifts import foreign_texts as made

OWN = [
    f"The {animal} sleeps in a house {number}." for number, animal in enumerate(["cat", "dog"] * 9)
]
MAKERS = {
    "word_order": lambda seed: made.word_order(OWN, seed),
    "random_words": lambda seed: made.random_words(OWN, seed),
    "other_script": lambda seed: made.other_script(OWN, seed),
    "other_language": lambda seed: made.other_language(18, seed),
    "program_code": lambda seed: made.program_code(18, seed),
    "sentences": lambda seed: made.sentences([" ".join(OWN)] * 18, 18, seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_foreign_texts_follow_from_their_seed(name: str) -> None:
    texts = MAKERS[name](0)
    assert len(texts) == 18
    assert all(text.strip() for text in texts)
    assert texts == MAKERS[name](0) != MAKERS[name](1)


def test_words_stay_or_are_those_of_all_texts() -> None:
    known = {word for text in OWN for word in text.split()}
    for before, ordered, drawn in zip(
        OWN, MAKERS["word_order"](0), MAKERS["random_words"](0), strict=True
    ):
        assert sorted(ordered.split()) == sorted(before.split())
        assert len(drawn.split()) == len(before.split())
        assert set(drawn.split()) <= known
    assert not any(
        letter.isascii()
        for text in MAKERS["other_script"](0)
        for letter in text
        if letter.isalpha()
    )
    assert set(MAKERS["sentences"](0)) <= set(OWN)


def test_near_and_far_sets_are_told_apart() -> None:
    assert {distance(name) for name in ("ood/cifar100", "word_order")} == {"near"}
    assert {distance(name) for name in ("ood/svhn", "program_code", "photographs")} == {"far"}
