"""A converted model as a folder: weights as safetensors, the rest as JSON, nothing pickled.

manifest.json       checksums of all of these
model.safetensors   all weights
kepsvgp.json        how to build the model, and which of its layers are converted, and how
config.json         Hugging Face models: their own configuration, inside one of ours
README.md           what it is, as a model card; not among the checksums, for people to edit
tokenizer…          Hugging Face models: what prepares their inputs, where it was given
"""

import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from kepsvgp.conversion.base import Adapter, replace
from kepsvgp.conversion.build import Build, build, describe, save_config, wrap
from kepsvgp.conversion.card import CARD, model_card
from kepsvgp.conversion.mean import attach, converted_layers, make_pair, pair_of
from kepsvgp.conversion.probe import answer, check_answer
from kepsvgp.conversion.selection import ADAPTERS
from kepsvgp.conversion.torch_nn import without_nested_tensors
from kepsvgp.conversion.watch import watch, watched_layers
from kepsvgp.errors import UserError, told
from kepsvgp.files import A_DAY, PART, CheckedFolder, remove_leftovers, replacing
from kepsvgp.inference.abstention import Abstainer

RECORD = "kepsvgp.json"
WEIGHTS = "model.safetensors"
_AGAIN = "Save the model again."


@runtime_checkable
class Processor(Protocol):
    """A tokenizer or image processor of Hugging Face."""

    def save_pretrained(self, save_directory: str) -> Any:
        """Writes itself to a folder."""
        ...


@told
def save_pretrained(
    model: nn.Module,
    folder: Path | str,
    *,
    processor: Processor | None = None,
    model_args: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    metrics: Mapping[str, float] | None = None,
    rule: Abstainer | None = None,
    state_dict: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a converted model to a folder from which `load_pretrained` restores it.

    Models of Hugging Face, timm and plain `torch.nn` come back from the folder alone. For a
    class of your own, `load_pretrained` must be given a new instance of it.

    Args:
        model: A converted model.
        folder: Where to; made if need be.
        processor: The tokenizer or image processor, saved beside the model.
        model_args: timm alone: the arguments of `create_model` beyond the model's name.
        classes: Names of the classes, in order; Hugging Face models have them in their own
            configuration.
        metrics: What was measured, by name, for the model card.
        rule: When to abstain; saved beside the model, and told on its card.
        state_dict: The weights, where they are gathered from several processes.

    Examples:
        >>> save_pretrained(convert(model), "my-model", metrics={"accuracy": 0.91})
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"folder must be one, or not there yet; {folder} is a file.")
    _check_values("metrics", metrics, (int, float))
    _check_values("state_dict", state_dict, (Tensor,))
    layers = converted_layers(_bare(model))
    if not layers:
        raise UserError("model must have a converted layer; got none. Call convert first.")
    count = _num_classes(model)
    if classes is not None and count is not None and len(classes) != count:
        raise UserError(
            f"classes must be {count} names, as many as the model has; got {len(classes)}."
        )
    recipe = describe(model, model_args or {})
    record = {
        "version": version("kepsvgp"),
        "build": recipe._asdict(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "layers": {name: _record(layer) for name, layer in layers.items()},
        "watched": watched_layers(_bare(model)),
        "classes": None if classes is None else list(classes),
    }
    # weights that are gathered may not be in the model
    if recipe.library == "timm" and state_dict is None:
        record["answer"] = answer(model)
    files = CheckedFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder, older_than=A_DAY)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=PART) as made:
        # what others write comes first and elsewhere: until all is there the old model stays whole
        if recipe.library in ("transformers", "peft"):
            save_config(_bare(model), Path(made))
        if processor is not None:
            processor.save_pretrained(made)
        with replacing(Path(made) / WEIGHTS) as temporary:
            _save_weights(model, state_dict, str(temporary))
        # between old and new the folder is refused
        (folder / RECORD).unlink(missing_ok=True)
        for path in (path for path in Path(made).rglob("*") if path.is_file()):
            with files.replacing(path.relative_to(made).as_posix()) as temporary:
                path.replace(temporary)
    with replacing(folder / CARD) as temporary:
        temporary.write_text(model_card(model, layers, metrics or {}, rule), encoding="utf-8")
    # last: a folder with this file is complete
    files.write_json(RECORD, record)
    if rule is not None:
        rule.save(folder)


def _check_values(name: str, given: Mapping[str, Any] | None, kinds: tuple[type, ...]) -> None:
    for key, value in (given or {}).items():
        if not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{name} must have a {wanted} as {key}; got a {type(value).__name__}.")


def _bare(model: Any) -> Any:
    """The model inside of what PEFT wraps around it, by whose names layers are known."""
    return model.get_base_model() if type(model).__module__.startswith("peft.") else model


def _save_weights(model: nn.Module, given: Mapping[str, Tensor] | None, path: str) -> None:
    about = {"format": "pt"}
    if given is None:
        save_model(model, path, about)
    else:
        save_file({name: value.contiguous() for name, value in given.items()}, path, about)


def _record(layer: Any) -> dict[str, Any]:
    pair = pair_of(layer)
    if pair is not None:
        return {"mean": "attention", "settings": pair.settings}
    return {"mean": "zero", "adapter": type(layer).__name__, "settings": layer.settings}


def _converted(
    model: nn.Module,
    name: str,
    module: nn.Module,
    entry: Mapping[str, Any],
    adapters: Mapping[str, Adapter],
) -> nn.Module:
    """The model with one of its modules converted as a record says."""
    if entry.get("mean") == "attention":
        attach(module, make_pair(module, entry["settings"]))
        return model
    if entry["adapter"] not in adapters:
        raise UserError(
            f"adapters must include {entry['adapter']}, which converted {name}; it is not one of "
            "ours."
        )
    return replace(model, name, adapters[entry["adapter"]](module, **entry["settings"]))


def is_pretrained(folder: Path) -> bool:
    """Whether `save_pretrained` wrote this folder."""
    return (folder / RECORD).is_file()


def class_names(folder: Path, model: nn.Module) -> tuple[str, ...]:
    """The names of the classes, from the folder or the model's own configuration."""
    names = CheckedFolder(folder).read_json(RECORD)["classes"]
    by_number = getattr(getattr(model, "config", None), "id2label", None)
    if names is None and by_number is not None:
        names = [by_number[number] for number in sorted(by_number)]
    if names is None:
        count: Any = getattr(model, "num_classes", 0)
        names = map(str, range(count))
    return tuple(names)


def _num_classes(model: nn.Module) -> int | None:
    """As far as models of the libraries that we know say it."""
    config: Any = getattr(model, "config", None)
    if type(model).__name__.endswith(("ForSequenceClassification", "ForImageClassification")):
        return config.num_labels
    count: Any = getattr(model, "num_classes", None)
    return count if hasattr(model, "pretrained_cfg") else None


def load_folder(
    folder: Path,
    *,
    model: nn.Module | None = None,
    adapters: Sequence[Adapter] = (),
) -> nn.Module:
    """The converted model in a folder, in evaluation mode."""
    if not is_pretrained(folder):
        raise UserError(
            f"{folder} must be a folder that save_pretrained wrote; there is no {RECORD} in it."
        )
    files = CheckedFolder(folder)
    # those that libraries read are checked with ours
    files.check_all()
    record = files.read_json(RECORD)
    recipe = Build(**record["build"])
    model = build(recipe, folder) if model is None else model
    model = model.to(getattr(torch, record["dtype"]))
    by_name = {adapter.__name__: adapter for adapter in (*ADAPTERS, *adapters)}
    for name, entry in record["layers"].items():
        try:
            module = model.get_submodule(name)
        except AttributeError:
            raise UserError(
                f"model must have a module {name}, as the one that was saved; got a "
                f"{type(model).__name__} without it."
            ) from None
        without_nested_tensors(model, [module])
        model = _converted(model, name, module, entry, by_name)
    for name, is_middle in record.get("watched", {}).items():
        watch(model, name, is_middle=is_middle)
    model = wrap(recipe, model)
    # parts may have a type of their own
    stored = load_file(folder / WEIGHTS)
    for each in (model.named_parameters, model.named_buffers):
        for name, value in each(remove_duplicate=False):
            if name in stored:
                value.data = value.data.to(stored[name].dtype)
    try:
        load_model(model, folder / WEIGHTS)
    except RuntimeError as error:
        raise UserError(
            f"{folder / WEIGHTS} must hold the weights of the model in {RECORD}; they are of "
            f"another model ({error}). {_AGAIN}"
        ) from None
    check_answer(model, record.get("answer"), folder)
    return model.eval()
