"""Texts and names that try to break out of a page, and a benchmark made of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kepsvgp.data import Benchmark, Examples, TextExamples
from kepsvgp.data.examples import Ragged

TEXTS = (
    "<script>alert('example')</script>",
    "</script><script>alert(2)</script><!--",
    '<img src=x onerror="alert(3)">',
    "a" * 10_000,
    "w " * 5_000,
    "שלום עולם — مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301\u0301\u0301",
    "line\u2028separator\u2029and\u0000nul",
    "{{ 7 * 7 }} {% raw %} ${7 * 7} `x` \\u003c",
    "&lt;b&gt; &amp; <b>bold</b>",
    "",
    "\u202eright to left override",
)
CLASSES = (
    "<script>alert('class')</script>",
    "c" * 10_000,
    "שלום",
    '"><svg onload=alert(4)>',
)


def text_benchmark(
    labels: Tensor,
    *,
    texts: Sequence[str] = TEXTS,
    task: str = "text",
    test: Examples | None = None,
    ood: Mapping[str, Examples] | None = None,
) -> Benchmark:
    """A benchmark whose test set is these texts, or any other examples."""
    places = torch.arange(len(labels))
    examples = test or TextExamples(
        labels, places, tokens=Ragged.of([[1]] * len(labels)), texts=texts, places=places
    )
    kind: Any = task
    return Benchmark(
        name="hostile",
        task=kind,
        classes=CLASSES,
        train=examples,
        val=examples,
        test=examples,
        seed=0,
        ood=ood or {},
    )
