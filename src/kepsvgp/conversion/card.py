"""The model card of a converted model: what it is, what it costs, what it promises."""

from collections.abc import Iterable, Mapping

from torch import nn

from kepsvgp.conversion.mean import pairs_of
from kepsvgp.inference.abstention import Abstainer

CARD = "README.md"
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "ForVideoClassification": "video-classification",
}


def model_card(
    model: nn.Module,
    layers: Iterable[str],
    metrics: Mapping[str, float],
    rule: Abstainer | None,
) -> str:
    """The card, in Markdown, with the header that the hub reads."""
    kind = type(model).__name__
    tasks = [f"pipeline_tag: {task}" for end, task in _TASKS.items() if kind.endswith(end)]
    header = ["---", "library_name: kepsvgp", "tags: [kepsvgp, uncertainty]", *tasks, "---"]
    total = sum(p.numel() for p in model.parameters())
    pairs = pairs_of(model)
    new = sum(p.numel() for pair in pairs for p in pair.parameters())
    has_novelty = any(pair.novelty is not None for pair in pairs)
    body = [
        f"# {kind} that knows when it does not know",
        f"The attention in {', '.join(f'`{name or kind}`' for name in layers)} has a posterior: "
        "a kernel-eigen pair of sparse variational Gaussian processes "
        "([arXiv:2402.01476](https://arxiv.org/abs/2402.01476)). A plain call gives the posterior "
        "mean; `predict` draws samples.",
        "```python\nfrom kepsvgp import load_pretrained, predict\n\n"
        'model = load_pretrained("this folder, or its name on the hub")\n'
        "prediction = predict(model, inputs, num_samples=10)\n"
        "print(prediction.predicted, prediction.confidence, prediction.epistemic)\n```",
        "With `import kepsvgp.integrations.huggingface` the `Auto` classes and `pipeline` of "
        "transformers open it too.",
        "## Measured",
        *([_table(metrics)] if metrics else ["Nothing was measured when it was saved."]),
        "## Cost",
        f"{new:,} of {total:,} parameters are the pair's. Samples share all that comes before the "
        "first of these layers, and repeat what comes after it.",
        "## What it promises, and what not",
        "No rule for when to abstain was saved." if rule is None else f"The rule: {rule.words}.",
        "A rule promises for examples like those it was fitted to, and for no others. "
        + ("Novelty is fitted: `prediction.novelty` scores what is foreign to the training inputs."
           if has_novelty else "Novelty is not fitted: inputs of another kind may go unnoticed."),
    ]  # fmt: skip
    return "\n".join(header) + "\n\n" + "\n\n".join(body) + "\n"


def _table(metrics: Mapping[str, float]) -> str:
    rows = (f"| {name} | {value:.4g} |" for name, value in metrics.items())
    return "\n".join(("| metric | value |", "| --- | --- |", *rows))
