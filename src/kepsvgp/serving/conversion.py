"""A Hugging Face folder and labelled data in, the same model with a posterior out.

The data are best ones that the model was not trained on. They are divided at random: two fifths
fit the posterior and show what is familiar, and a fifth each chooses the prior precision,
calibrates, and tests. A promise about what is foreign is made on three quarters of those that
calibrate: the others give novelty its scale.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kepsvgp.conversion import convert, save_pretrained
from kepsvgp.conversion.build import from_folder
from kepsvgp.errors import UserError
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.inference.novelty import fit_novelty, gives_scale
from kepsvgp.inference.posterior import PosteriorFit, fit_posterior
from kepsvgp.serving.saved import SavedModel, saved_model
from kepsvgp.serving.tested import Labelled, Tested, predict_labelled, read_labelled

# a fifth of fewer says nothing
FEWEST = 100
_BATCH = 32


class Converted(NamedTuple):
    """What became of a model: its answers to the test part before and after, and the rule."""

    before: Tested
    after: Tested
    fit: PosteriorFit
    rule: Abstainer | None


def convert_folder(
    folder: Path,
    data: Path,
    out: Path,
    *,
    layers: int = 1,
    max_risk: float | None = None,
    max_false_alarm: float | None = None,
    confidence: float = 0.95,
    text_column: str = "text",
    label_column: str = "label",
    num_samples: int = 10,
    seed: int = 0,
    say: Callable[[str], None] = lambda step: None,
) -> Converted:
    """Gives the model of a Hugging Face folder its posterior and its sense of the foreign.

    It takes minutes, so `say` is told what is done next.
    """
    model, processor = _load(folder)
    saved = saved_model(folder, model, _classes(model), num_samples, seed)
    given = read_labelled(saved, data, text_column, label_column)
    if len(given.items) < FEWEST:
        raise UserError(
            f"{data} must have at least {FEWEST} labelled examples; got {len(given.items)}."
        )
    order = torch.randperm(len(given.items), generator=torch.Generator().manual_seed(seed))
    fifth = len(order) // 5
    test, calibration, validation, train = (
        given.part(rows) for rows in order.split([fifth, fifth, fifth, len(order) - 3 * fifth])
    )
    convert(model, layers)
    say(f"asking the model as it was {fifth:,} test examples")
    before = predict_labelled(saved, test)
    device = next(model.parameters()).device
    say(f"fitting the posterior to {len(train.items):,} examples")
    fit = fit_posterior(
        model, _batches(saved, train), validation=_batches(saved, validation), device=device
    )
    say("fitting novelty")
    fit_novelty(
        model,
        _batches(saved, train),
        calibration=_batches(saved, calibration),
        num_samples=num_samples,
        seed=seed,
        device=device,
    )
    say("asking the converted model")
    rule = None
    if max_risk is not None or max_false_alarm is not None:
        if max_false_alarm is not None:
            calibration = calibration.part((~gives_scale(fifth)).argwhere().flatten())
        answered = predict_labelled(saved, calibration).prediction
        rule = Abstainer.fit(
            answered, max_risk=max_risk, confidence=confidence, max_false_alarm=max_false_alarm
        )
    after = predict_labelled(saved, test)
    metrics = after.prediction.metrics()
    save_pretrained(model, out, processor=processor, metrics=metrics, rule=rule)
    return Converted(before, after, fit, rule)


def _batches(saved: SavedModel, part: Labelled) -> Iterator[tuple[Any, Tensor]]:
    """What the model takes, with the labels, some at a time."""
    for rows in torch.arange(len(part.items)).split(_BATCH):
        some = part.part(rows)
        yield saved.prepare([saved.load(item) for item in some.items]), some.labels


def _load(folder: Path) -> tuple[nn.Module, Any]:
    """The classifier in a folder, and its tokenizer or image processor."""
    import transformers

    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} must be a folder of Hugging Face, with config.json; there is none in it."
        )
    is_text = (folder / "tokenizer_config.json").is_file()
    kind = "SequenceClassification" if is_text else "ImageClassification"
    names = from_folder(transformers.AutoConfig, folder).architectures or []
    if not any(name.endswith(kind) for name in names):
        raise UserError(
            f"{folder} must hold a model for {kind}, fine-tuned already; its config.json says "
            f"{', '.join(names) or 'nothing'}."
        )
    model = from_folder(getattr(transformers, f"AutoModelFor{kind}"), folder)
    reader = transformers.AutoTokenizer if is_text else transformers.AutoImageProcessor
    return model.eval(), from_folder(reader, folder)


def _classes(model: Any) -> tuple[str, ...]:
    names = model.config.id2label
    return tuple(names[number] for number in sorted(names))
