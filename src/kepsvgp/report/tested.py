"""Plain predictions as a reader compares them, whatever model they are of."""

from collections.abc import Mapping, Sequence

from kepsvgp.inference.prediction import Prediction
from kepsvgp.report.examples import Source
from kepsvgp.report.models import Comparison, Member, Model
from kepsvgp.serving.tested import Tested, as_tested, measured


class _Texts:
    """Texts that the page can show."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def raw(self, position: int) -> str:
        return self._texts[position]

    def __len__(self) -> int:
        return len(self._texts)


def compare_tested(
    tested: Mapping[str, Tested | Prediction], *, title: str
) -> list[tuple[Comparison, Source]]:
    """Models by name, those with the same labels beside each other, and the texts if known."""
    sets: dict[bytes, dict[str, Tested]] = {}
    for name, given in tested.items():
        one = as_tested(given)
        sets.setdefault(one.labels.numpy().tobytes(), {})[name] = one
    found = []
    for number, group in enumerate(sets.values(), start=1):
        models = tuple(Model(name, (_member(given),)) for name, given in group.items())
        first = next(iter(group.values()))
        texts = next((given.texts for given in group.values() if given.texts is not None), None)
        heading = title if len(sets) == 1 else f"{title} ({number})"
        source = Source(None if texts is None else _Texts(texts), {})
        found.append((Comparison(heading, models, first.classes), source))
    return found


def _member(given: Tested) -> Member:
    return Member("", {"": measured(given)}, {"test": given.prediction})
