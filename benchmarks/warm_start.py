"""How close a converted MiniLM is to the model it came from, before any fine-tuning.

    python benchmarks/warm_start.py

The last attention layer is converted and fitted to 2,000 unlabelled training sentences of CoLA;
what is told is measured on its 855 validation sentences, at the posterior mean.
"""

import copy
import json
import sys
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.utils import logging

from kepsvgp import convert
from kepsvgp.attention.base import use_draws
from kepsvgp.config.sections import DataConfig
from kepsvgp.conversion import ConvertedAttention, converted_layers
from kepsvgp.conversion.selection import select
from kepsvgp.conversion.warm_start import record
from kepsvgp.data import batches, load_benchmark
from kepsvgp.data.examples import Examples
from kepsvgp.data.text.tokens import minilm_folder

VARIANTS = {
    "default": {},
    "uncalibrated": {},
    "rank10": {"rank": 10},
    "landmark": {"projection": "landmark", "num_landmarks": 16},
}


def inputs_of(examples: Examples) -> list[dict[str, Tensor]]:
    found = []
    for batch in batches(examples, 64, bucket=True):
        assert isinstance(batch.inputs, dict)
        mask = batch.inputs["mask"].long()
        found.append({"input_ids": batch.inputs["tokens"], "attention_mask": mask})
    return found


def at_the_mean(model: nn.Module):
    """Draws of the converted layers that are their posterior means."""
    layers = [layer.kep for layer in converted_layers(model).values()]
    return use_draws({kep: kep.v_mean.unsqueeze(0) for kep in layers}) if layers else nullcontext()


@torch.no_grad()
def embeddings(model: nn.Module, inputs: list[dict[str, Tensor]]) -> Tensor:
    """Mean of the last tokens."""
    found = []
    with at_the_mean(model):
        for batch in inputs:
            mask = batch["attention_mask"].unsqueeze(-1)
            tokens = model(**batch).last_hidden_state * mask
            found.append(tokens.sum(dim=1) / mask.sum(dim=1))
    return torch.cat(found)


@torch.no_grad()
def layer_error(model: nn.Module, calls: list, layer: ConvertedAttention) -> float:
    """Squared error of the layer's output relative to the variance of the old one's."""
    wrong, old = [], []
    with at_the_mean(model):
        for call in calls:
            new, before = (
                layer.tokens_of(output)
                for output in (layer(*call.args, **call.kwargs), call.output)
            )
            mask = call.kwargs["attention_mask"]
            if mask is None:
                real = torch.ones(before.shape[:2], dtype=torch.bool)
            else:
                # the additive mask of Hugging Face is zero at real tokens
                real = (mask if mask.dtype == torch.bool else mask == 0)[:, 0, -1]
            new = new[real]
            old.append(before[real])
            wrong.append((new - old[-1]).square().flatten())
    return (torch.cat(wrong).mean() / torch.cat(old).var(dim=0).mean()).item()


def compared(new: Tensor, old: Tensor) -> dict[str, float]:
    change = (new - old).square().sum(dim=-1).mean() / (old - old.mean(dim=0)).square().sum(
        dim=-1
    ).mean()
    cosine = torch.cosine_similarity(new, old).mean()
    return {"change": change.item(), "cosine": cosine.item()}


def main() -> None:
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    original = AutoModel.from_pretrained(minilm_folder()).eval()
    data = load_benchmark(DataConfig(name="cola", encoder="minilm", max_length=100))
    calibration = inputs_of(data.train.subset(torch.arange(2000)))
    others = inputs_of(data.val)
    old = embeddings(original, others)
    (chosen,) = select(original, 1, "zero")
    calls = record(original, [chosen.module], others)[chosen.module]
    found: dict[str, dict[str, float]] = {}
    for name, settings in VARIANTS.items():
        torch.manual_seed(0)
        model = convert(
            copy.deepcopy(original),
            1,
            mean="zero",
            calibration=None if name == "uncalibrated" else calibration,
            **settings,
        ).eval()
        (layer,) = converted_layers(model).values()
        found[name] = compared(embeddings(model, others), old)
        found[name]["error"] = layer_error(model, calls, layer)
        sys.stderr.write(f"{name}: {found[name]}\n")
    handle = chosen.module.register_forward_hook(
        lambda _, __, output: tuple(
            torch.zeros_like(part) if index == 0 else part for index, part in enumerate(output)
        )
    )
    found["none"] = compared(embeddings(original, others), old)
    handle.remove()
    print(json.dumps({"sentences": len(data.val), "variants": found}, indent=1))


if __name__ == "__main__":
    main()
