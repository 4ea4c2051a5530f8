"""A trained model from its folder, ready for new texts or images.

The folder is a run that `kepsvgp train` made, or one that `save_pretrained` wrote. Inputs are
prepared as they were for training: by the run's own data settings, or by the tokenizer or image
processor that was saved beside a converted model.
"""

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import PredictionConfig
from kepsvgp.conversion import load_pretrained
from kepsvgp.conversion.build import PROCESSORS, from_folder
from kepsvgp.conversion.folder import class_names, is_pretrained
from kepsvgp.data import batches, pictures
from kepsvgp.data.examples import Examples, Normalisation, image_examples
from kepsvgp.data.text import features
from kepsvgp.data.text.prepare import cutter, reader
from kepsvgp.data.text.tokens import shortened
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.inference.novelty import gives_scale
from kepsvgp.inference.prediction import Prediction, predict, predict_batches, to_device
from kepsvgp.ops.device import find_device
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import weights_about

Task = Literal["text", "image"]


@dataclass(frozen=True)
class SavedModel:
    """A model with all that new inputs need.

    Attributes:
        path: The folder it came from.
        task: What it takes: texts, or images, as paths or streams.
        classes: Names of its classes.
        model: The model itself, in evaluation mode.
        prepare: What it takes as inputs, from some that `load` gave.
        load: Reads one input, and refuses one that cannot be read.
        predict: The prediction for some inputs that `load` gave.
        calibrate: The prediction for labelled examples that the model was not trained on, where
            the folder knows of any.
    """

    path: Path
    task: Task
    classes: tuple[str, ...]
    model: nn.Module
    prepare: Callable[[Sequence[Any]], Any]
    load: Callable[[Any], Any]
    predict: Callable[[Sequence[Any]], Prediction]
    calibrate: Callable[[], Prediction] | None = None

    def predict_all(self, items: Sequence[Any], *, batch_size: int = 256) -> Prediction:
        """The prediction for inputs as they come, some of them at a time."""
        parts = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(items), batch_size):
                loaded = list(pool.map(self.load, items[start : start + batch_size]))
                parts.append(self.predict(loaded))
        return Prediction.concatenate(parts)

    def abstainer(
        self, max_risk: float | None, confidence: float, max_false_alarm: float | None = None
    ) -> Abstainer:
        """The rule for promises: the saved one, or one fitted to a run's validation data.

        False alarms are promised on those of them that gave novelty no scale.
        """
        asked = (max_risk, confidence, max_false_alarm)
        if Abstainer.is_saved(self.path):
            saved = Abstainer.load(self.path)
            if (saved.max_risk, saved.confidence, saved.max_false_alarm) == asked:
                return saved
        if self.calibrate is None:
            wanted = f"max_risk={max_risk}, confidence={confidence}"
            wanted += "" if max_false_alarm is None else f", max_false_alarm={max_false_alarm}"
            raise UserError(
                f"{self.path} must have a saved rule for {wanted}; it has none. Fit one to "
                "labelled examples that were not trained on: "
                f"Abstainer.fit(prediction, labels, {wanted}).save(folder)."
            )
        answered = self.calibrate()
        if max_false_alarm is not None:
            answered = answered[~gives_scale(len(answered))]
        return Abstainer.fit(
            answered, max_risk=max_risk, confidence=confidence, max_false_alarm=max_false_alarm
        )


def open_folder(path: Path, *, num_samples: int = 10, seed: int = 0) -> SavedModel:
    """The model of a run folder or of a folder that `save_pretrained` wrote."""
    if not path.is_dir():
        raise UserError(f"{path} must be a folder with a model; there is no such folder.")
    if is_pretrained(path):
        model = load_pretrained(path)
        return saved_model(path, model, class_names(path, model), num_samples, seed)
    return _from_run(RunFolder(path), num_samples, seed)


def _from_run(run: RunFolder, num_samples: int, seed: int) -> SavedModel:
    config, record = run.config(), run.record()
    model = run.model().to(find_device(config.train.device, is_binding=False))
    settings = config.prediction.model_copy(update={"num_samples": num_samples})
    load, examples = _run_inputs(run)

    def answer(items: Sequence[Any]) -> Prediction:
        return _predict_examples(model, examples(items), settings, seed)

    def calibrate() -> Prediction:
        # what `kepsvgp refit` wrote says whose it is
        about = weights_about(run.weights_file())
        method: str = about.get("method") or find_method(config.method).name
        known = config.train.select, method, "val"
        # a threshold is one for so many samples, drawn like this
        if (
            settings == config.prediction
            and seed == config.seed
            and (run.predictions_file(*known).is_file())
        ):
            return run.prediction(*known)
        return _predict_examples(model, run.benchmark().val, settings, seed)

    def prepare(items: Sequence[Any]) -> Any:
        return examples(items).inputs(torch.arange(len(items)))

    return SavedModel(
        run.path, record["task"], run.classes(), model, prepare, load, answer, calibrate
    )


def _run_inputs(
    run: RunFolder,
) -> tuple[Callable[[Any], Any], Callable[[Sequence[Any]], Examples]]:
    record = run.record()
    if record["task"] == "text":
        run.check_outside()
        data = run.config().data
        return cutter(data), reader(data)
    channels, side = record["input"]["channels"], record["input"]["height"]
    known = record["splits"]["normalisation"]
    normalisation = Normalisation(tuple(known["mean"]), tuple(known["std"]))

    def read(path: pictures.Picture) -> np.ndarray:
        return pictures.read(path, side, grayscale=channels == 1)

    def examples(images: Sequence[np.ndarray]) -> Examples:
        labels = torch.full((len(images),), -1)
        return image_examples(torch.from_numpy(np.stack(images)), labels, normalisation)

    return read, examples


def _predict_examples(
    model: nn.Module, examples: Examples, settings: PredictionConfig, seed: int
) -> Prediction:
    return predict_batches(
        model,
        batches(examples, settings.batch_size, bucket=True),
        num_samples=settings.num_samples,
        average=settings.average,
        seed=seed,
        device=next(model.parameters()).device,
    )


def saved_model(
    path: Path, model: nn.Module, classes: tuple[str, ...], num_samples: int, seed: int
) -> SavedModel:
    """A model of Hugging Face or timm, with what its folder has to prepare inputs."""
    if hasattr(model, "config"):
        task, load, collate = _hugging_face_inputs(path, model)
    elif hasattr(model, "pretrained_cfg"):
        task, load, collate = "image", *_timm_inputs(model)
    else:
        raise UserError(
            f"{path} must hold a Hugging Face or timm model; how to prepare the inputs of a "
            f"{type(model).__name__} is not known here. Use load_pretrained and predict."
        )

    device = find_device()
    model.to(device)

    def answer(items: Sequence[Any]) -> Prediction:
        generator = torch.Generator().manual_seed(seed)
        inputs = to_device(collate(items), device)
        answered = predict(model, inputs, num_samples=num_samples, generator=generator)
        return replace(answered, seed=seed)

    return SavedModel(path, task, classes, model, collate, load, answer)


def _hugging_face_inputs(
    path: Path, model: Any
) -> tuple[Task, Callable[[Any], Any], Callable[[Sequence[Any]], Any]]:
    import transformers

    # what was saved with the model counts before what others put beside it
    files = CheckedFolder(path)
    found = [name for name in PROCESSORS if (path / name).is_file()]
    kind = next((name for name in found if files.has(name)), next(iter(found), None))
    if kind == PROCESSORS[0]:
        tokenizer = from_folder(transformers.AutoTokenizer, path)
        longest = min(tokenizer.model_max_length, features.num_positions(model))

        # these tokenizers hold settings that threads would change under each other
        lock = threading.Lock()

        def tokens(texts: Sequence[str], **options: Any) -> Any:
            with lock:
                return dict(tokenizer(list(texts), truncation=True, max_length=longest, **options))

        def load(text: str) -> str:
            return shortened(text, longest, lambda part: len(tokens([part])["input_ids"][0]))

        return "text", load, partial(tokens, padding=True, return_tensors="pt")
    if kind == PROCESSORS[1]:
        processor = from_folder(transformers.AutoImageProcessor, path)
        grayscale = getattr(model.config, "num_channels", 3) == 1
        by_shorter_side = (
            dict(getattr(processor, "size", None) or {}).get("shortest_edge") is not None
        )

        def pixels(file: pictures.Picture) -> Any:
            with pictures.room_for(file):
                image = pictures.open_upright(file, grayscale=grayscale)
                image = pictures.without_ends(image) if by_shorter_side else image
                return dict(processor(image, return_tensors="pt"))

        def stack(items: Sequence[Any]) -> Any:
            return {name: torch.cat([item[name] for item in items]) for name in items[0]}

        return "image", pixels, stack
    raise UserError(
        f"{path} must have the tokenizer or image processor of its model; it has none. Save the "
        "model again with save_pretrained(model, folder, processor=tokenizer)."
    )


def _timm_inputs(model: Any) -> tuple[Callable[[Any], Any], Callable[[Sequence[Any]], Any]]:
    """As timm evaluates: a larger image, of which the middle is taken."""
    config, size = model.pretrained_cfg, tuple(model.patch_embed.img_size)
    first = next((m for m in model.patch_embed.modules() if isinstance(m, nn.Conv2d)), None)
    grayscale = first is not None and first.in_channels == 1
    mean, std = (tuple(config[name]) for name in ("mean", "std"))
    if grayscale:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    normalisation = Normalisation(mean, std)
    crop, filtered = config.get("crop_pct") or 0.875, config.get("interpolation") or "bicubic"
    scaled = tuple(math.floor(side / crop) for side in size)

    def read(path: pictures.Picture) -> np.ndarray:
        return pictures.read_middle(
            path,
            size,
            scaled,
            # some were trained with filters at random
            filtered="bilinear" if filtered == "random" else filtered,
            squash=config.get("crop_mode") == "squash",
            grayscale=grayscale,
        )

    def stack(images: Sequence[np.ndarray]) -> Any:
        return normalisation(torch.from_numpy(np.stack(images)))

    return read, stack
