"""Every method asked by many threads at once, in every mode, compiled or not.

In a process of its own, where compiled code is not disturbed by the type checks of the tests:
`python threads.py eager|compiled CALLS STEP` asks every STEP-th and prints how many answers
were compared.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import families
import torch
from methods.cases import CLASSES, IMAGES, TEXTS, make_batches
from methods.test_all_methods import METHODS, fitted
from serving.test_predict_command import TEXTS as SENTENCES
from serving.test_predict_command import text_folder
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import KEPAttention, convert, fit_novelty, predict
from kepsvgp.errors import UserError
from kepsvgp.serving import open_folder

THREADS, QUESTIONS = 8, 6
NOISES, PROJECTIONS = ("joint", "token"), ("landmark", "dual")


class Subject(NamedTuple):
    name: str
    models: list[nn.Module]
    ask: Callable[[int], Tensor]
    """The probabilities for question `number`, which has a batch and a seed of its own."""


class Own(nn.Module):
    """Somebody's model, with all that a mode decides, and one module in two places."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.norm, self.first = nn.BatchNorm1d(12), KEPAttention(12, 3, rank=4, **settings)
        self.layer = KEPAttention(12, 3, rank=4, **settings)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(12, CLASSES))
        self.again = self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.layer(self.first(self.norm(x.mT).mT))).mean(dim=-2)


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def of_model(name: str, model: nn.Module, batch: Callable[[int], Any]) -> Subject:
    fit_novelty(model, [batch(number) for number in range(20)])

    def ask(number: int) -> Tensor:
        found = predict(model, batch(number), num_samples=3, generator=seeded(number))
        assert found.novelty is not None
        # its scale is that of few examples
        return torch.cat([found.probs, found.novelty.unsqueeze(-1) / 1000], dim=-1)

    return Subject(name, [model], ask)


def of_method(name: str, shape: Any) -> Subject:
    method = fitted(name, shape)
    batches = [inputs for inputs, _, _ in make_batches(shape, 5)]

    def ask(number: int) -> Tensor:
        inputs = batches[number % len(batches)]
        return method.predict(inputs, generator=seeded(number)).probs

    return Subject(f"{name}, {type(shape).__name__}", list(models_in(method)), ask)


def models_in(method: Any) -> Iterator[nn.Module]:
    for part in (*getattr(method, "members", ()), getattr(method, "base", None)):
        if part is not None:
            yield from models_in(part)
    if hasattr(method, "model"):
        yield method.model


def of_own(noise: str, projection: str, is_patched: bool) -> Subject:
    torch.manual_seed(0)
    model = Own(noise=noise, projection=projection)
    if is_patched:
        # as wrappers do, which bind the original
        model.forward = model.forward
    name = f"own model, {noise} {projection}"
    return of_model(name, model, lambda n: torch.randn(2 + n % 3, 7, 12, generator=seeded(n)))


def of_family(name: str) -> Subject:
    model, batch = families.make(name)
    return of_model(name, convert(model), lambda n: {k: v[n % 3 :] for k, v in batch.items()})


def of_folder(folder: Path) -> Subject:
    saved = open_folder(text_folder(folder), num_samples=3)
    return Subject("open_folder", [], lambda n: saved.predict(SENTENCES[n % 3 :]).probs)


def makers(folder: Path) -> Iterator[Callable[[], Subject]]:
    for shape in (IMAGES, TEXTS):
        yield from (partial(of_method, name, shape) for name in METHODS)
    yield from (partial(of_family, name) for name in families.TEXT + families.IMAGE)
    yield from (partial(of_own, *each) for each in product(NOISES, PROJECTIONS, (False, True)))
    yield partial(of_folder, folder)


def set_mode(model: nn.Module, mode: str) -> None:
    for number, module in enumerate(model.modules()):
        module.training = mode == "train" or (mode == "mixed" and number % 2 == 0)


def state(models: list[nn.Module]) -> list[Any]:
    return [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
        for model in models
        for module in model.modules()
    ] + [value.clone() for model in models for value in model.state_dict().values()]


def unchanged(before: list[Any], after: list[Any]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )


def check(subject: Subject, mode: str, calls: int) -> int:
    """Asks from one thread, then from many; returns how many answers were compared."""
    for model in subject.models:
        set_mode(model, mode)
    before = state(subject.models)
    expected = [subject.ask(number) for number in range(QUESTIONS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda n: subject.ask(n % QUESTIONS), range(calls)))
    for number, probs in enumerate(found):
        # another thread may take sums in another order; the draws of another call are far away
        assert_close(probs, expected[number % QUESTIONS], rtol=1e-5, atol=1e-6)
    assert unchanged(before, state(subject.models)), f"{subject.name} was changed"
    return calls


def main(kind: str, calls: int, step: int) -> None:
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for make in islice(makers(Path(folder)), 0, None, step):
            subject = make()
            first = subject.ask(0)
            for model in subject.models if kind == "compiled" else ():
                model.compile(backend="eager")
            for mode in ("eval", "train", "mixed"):
                try:
                    assert_close(subject.ask(0), first, rtol=1e-5, atol=1e-6)
                    compared += check(subject, mode, calls)
                except Exception as error:
                    # what puts hooks into the model cannot go with compiled code, and says so
                    is_told = isinstance(error, UserError) and "not compiled" in str(error)
                    if not (is_told and "mc_dropout" in subject.name and kind == "compiled"):
                        error.add_note(f"{subject.name}, {mode}, {kind}")
                        raise
    assert torch._dynamo.eval_frame._stance.stance == "default"
    print(compared)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
