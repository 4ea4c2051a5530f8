"""The public functions given what they do not take: done, or a `UserError` that names it."""

import inspect
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import families
import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

import kepsvgp
from kepsvgp.errors import UserError

STRANGE: dict[str, Any] = {
    "text": "bert-base",
    "texts": ["a cat", "a dog"],
    "bytes": b"cat",
    "nothing": None,
    "truth": True,
    "zero": 0,
    "negative": -1,
    "fraction": 1.5,
    "nan": float("nan"),
    "mapping": {"input_ids": [[1, 2]]},
    "pair": (torch.ones(2, 3).long(), torch.ones(2, 3).long()),
    "array": np.ones((2, 3)),
    "scalar": torch.tensor(1.0),
    "class": nn.Linear,
    "object": object(),
}

BASE, BATCH = families.make("bert")
LABELS = torch.tensor([0, 1, 2, 0])
CONVERTED = kepsvgp.convert(deepcopy(BASE))


def arguments(name: str, folder: Path) -> dict[str, Any]:
    """A call that works, as cheap as can be."""
    model = deepcopy(CONVERTED)
    if name in ("convert", "KEPAttention"):
        model = deepcopy(BASE)
    if name == "load_pretrained":
        kepsvgp.save_pretrained(model, folder)
    output = None
    if name == "loss":
        output = model.train()(**BATCH)
    labelled = [(BATCH, LABELS)]
    known: dict[str, Any] = {
        "model": None if name == "load_pretrained" else model,
        "inputs": BATCH,
        "output": output,
        "labels": LABELS,
        "num_train": 40,
        "num_samples": 2,
        "batches": labelled,
        "validation": labelled,
        "calibration": None if name == "fit_novelty" else [BATCH],
        "warm_steps": 1,
        "folder": folder,
        "path": folder / "graph.pt2",
        "lr": 0.1,
        "new_lr": 0.1,
        "dim": 12,
        "num_heads": 2,
        "probs": np.full((4, 2), 0.5),
        "targets": [0, 1, 1, 0],
    }
    function = FUNCTIONS[name]
    if "mean" in inspect.signature(function).parameters:
        known["mean"] = "zero"
    return {key: known[key] for key in inspect.signature(function).parameters if key in known}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(kepsvgp, name)
    for name in kepsvgp.__all__
    if inspect.isfunction(getattr(kepsvgp, name))
}
FUNCTIONS |= {
    "KEPAttention": kepsvgp.KEPAttention,
    "Prediction.from_arrays": kepsvgp.Prediction.from_arrays,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments_are_told(name: str, tmp_path: Path, monkeypatch) -> None:
    # what users have, who run without the checks of the tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.chdir(tmp_path)
    function = FUNCTIONS[name]
    raw = []
    for argument, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for kind, strange in STRANGE.items():
            given = arguments(name, tmp_path) | {argument: strange}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**given)
            except UserError:
                pass
            except Exception as error:
                raw.append(f"{argument}={kind}: {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)
