"""How an unconverted model is built again: its library, its class and its arguments."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import nn

from kepsvgp.conversion.torch_nn import ConvertedMultiheadAttention
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder

MODEL_TYPE = "kepsvgp"
# by these a tokenizer and an image processor are told
PROCESSORS = ("tokenizer_config.json", "preprocessor_config.json")
_CONFIG = "config.json"
_OPEN = "a converted model: open it by kepsvgp.load_pretrained"


class Build(NamedTuple):
    """What is needed to build a model anew, as JSON can hold it."""

    library: str
    """`transformers`, `peft`, `timm`, `torch`, or `own`: a class only its author can build."""
    name: str
    arguments: dict[str, Any]


def describe(model: nn.Module, model_args: Mapping[str, Any]) -> Build:
    """The recipe of a model."""
    kind = type(model)
    home = kind.__module__.partition(".")[0]
    if home == "transformers":
        if any(hasattr(module, "get_base_layer") for module in model.modules()):
            raise UserError(
                "model must be the PeftModel that has the adapters, or merge them first "
                f"(merge_and_unload); got the {kind.__name__} inside."
            )
        return Build("transformers", kind.__name__, {})
    if home == "peft":
        return _describe_peft(model)
    if home == "timm":
        config: Any = model.pretrained_cfg
        arguments = {"num_classes": model.num_classes} | dict(model_args)
        return Build("timm", config["architecture"], arguments)
    # a class of one's own that extends them is built by its author
    if type(model) in (nn.TransformerEncoder, nn.TransformerEncoderLayer):
        return _describe_encoder(model)
    if isinstance(model, ConvertedMultiheadAttention):
        return Build("torch", "MultiheadAttention", _attention_arguments(model))
    return Build("own", f"{kind.__module__}.{kind.__qualname__}", {})


def build(recipe: Build, folder: Path) -> nn.Module:
    """An unconverted model with random weights."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "transformers": lambda: _build_transformers(recipe.name, folder),
        "peft": lambda: _build_transformers(recipe.name, folder),
        "timm": lambda: library("timm").create_model(recipe.name, **recipe.arguments),
        "torch": lambda: _build_torch(recipe),
    }
    if recipe.library not in makers:
        raise UserError(
            f"model must be given: {folder} holds a {recipe.name}, which only its author can "
            f"build. Pass load_pretrained(folder, model={recipe.name.rpartition('.')[2]}(...))."
        )
    return makers[recipe.library]()


def wrap(recipe: Build, model: nn.Module) -> nn.Module:
    """A built and converted model in what was around it: the adapters of PEFT."""
    if recipe.library != "peft":
        return model
    peft = library("peft")
    for name, settings in recipe.arguments["adapters"].items():
        config = peft.get_peft_config(settings)
        if isinstance(model, peft.PeftModel):
            model.add_adapter(name, config)  # pyright: ignore[reportCallIssue]
        else:
            model = peft.get_peft_model(model, config, adapter_name=name)
    wrapped: Any = model
    wrapped.set_adapter(recipe.arguments["active"])
    return wrapped


def _describe_peft(model: Any) -> Build:
    inner = type(model.get_base_model())
    if not inner.__module__.startswith("transformers.") or len(model.active_adapters) != 1:
        raise UserError(
            "model must be of transformers and have one active adapter, to be saved with it; got "
            f"a {inner.__name__} with {model.active_adapters}. Merge them (merge_and_unload)."
        )
    adapters = {name: config.to_dict() for name, config in model.peft_config.items()}
    # names come as sets
    adapters = json.loads(json.dumps(adapters, default=sorted))
    return Build("peft", inner.__name__, {"adapters": adapters, "active": model.active_adapter})


def save_config(model: Any, folder: Path) -> None:
    """Writes the configuration of a Hugging Face model, with a model type of ours.

    A class that reads it as one of its own finds no sizes in it, and says so.
    """
    model.config.architectures = [type(model).__name__]
    config = json.loads(model.config.to_json_string(use_diff=False))
    common = {*library("transformers").PreTrainedConfig().to_dict()} - {"architectures"}
    outside = {name: value for name, value in config.items() if name in common}
    hidden = {name: _OPEN for name in config.keys() - common if _is_size(config[name])}
    # a part with a model type of its own would be taken for the whole
    family = config.pop("model_type")
    values = hidden | outside | {"model_type": MODEL_TYPE, "family": family, "model": config}
    (folder / _CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")


def _is_size(value: Any) -> bool:
    return isinstance(value, int | dict) and not isinstance(value, bool)


def _build_transformers(name: str, folder: Path) -> nn.Module:
    transformers = library("transformers")
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UserError(f"{folder} must name a model of transformers; got {name!r}.")
    saved = CheckedFolder(folder).read_json(_CONFIG)
    if saved.get("model_type") != MODEL_TYPE:
        # as version 0.1 wrote it
        return kind(from_folder(transformers.AutoConfig, folder))
    try:
        return kind(transformers.CONFIG_MAPPING[saved["family"]].from_dict(saved["model"]))
    except Exception as error:  # the library raises whatever its checks do
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{folder / _CONFIG} must describe a model that this version of transformers, "
            f"{transformers.__version__}, can build; it cannot ({reason})."
        ) from None


def from_folder(kind: Any, folder: Path) -> Any:
    """A part of a Hugging Face model, by its class; code that lies in the folder never runs.

    Of what was saved with a converted model nothing is read that was put beside it later.
    """
    with _as_saved(folder) as own:
        try:
            return kind.from_pretrained(own, trust_remote_code=False)
        except Exception as error:  # the libraries raise whatever their parsers do
            reason = str(error).strip().partition("\n")[0].replace(str(own), str(folder))
    raise UserError(
        f"{folder} must hold what {kind.__name__} of transformers can read without code of its "
        f"own; loading it failed ({reason})."
    )


@contextmanager
def _as_saved(folder: Path) -> Iterator[Path]:
    """A copy of the listed files but the weights; the folder itself where these prepare nothing."""
    files = CheckedFolder(folder)
    if not any(map(files.has, PROCESSORS)):
        yield folder
        return
    with tempfile.TemporaryDirectory() as own:
        for name in files.names():
            if not name.endswith(".safetensors"):
                (Path(own) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files.check(name), Path(own) / name)
        yield Path(own)


def library(name: str) -> Any:
    """A library that need not be installed."""
    try:
        return import_module(name)
    except ImportError:
        wanted = {"transformers": "kepsvgp[hf]", "timm": "kepsvgp[timm]"}.get(name, name)
        raise UserError(f"This needs {name}: pip install '{wanted}'.") from None


def _describe_encoder(model: Any) -> Build:
    layers: list[Any] = list(getattr(model, "layers", [model]))
    arguments, *others = map(_layer_arguments, layers)
    if arguments is None or any(each != arguments for each in others):
        return Build("own", f"torch.nn.{type(model).__name__}", {})
    if isinstance(model, nn.TransformerEncoder):
        norm = None if model.norm is None else {"eps": model.norm.eps}
        arguments |= {"num_layers": model.num_layers, "norm": norm}
    return Build("torch", type(model).__name__, arguments)


def _layer_arguments(layer: Any) -> dict[str, Any] | None:
    """None of what plain arguments do not make."""
    activation = {F.relu: "relu", F.gelu: "gelu"}.get(getattr(layer, "activation", None))
    if activation is None or type(layer) is not nn.TransformerEncoderLayer:
        return None
    attention = _attention_arguments(layer.self_attn)
    return {
        "d_model": attention["embed_dim"],
        "nhead": attention["num_heads"],
        "batch_first": attention["batch_first"],
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": activation,
        "layer_norm_eps": layer.norm1.eps,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }


def _attention_arguments(module: Any) -> dict[str, Any]:
    return {
        "embed_dim": module.embed_dim,
        "num_heads": module.num_heads,
        "batch_first": module.batch_first,
        "dropout": module.dropout,
        "bias": module.output.bias is not None if hasattr(module, "output") else True,
    }


def _build_torch(recipe: Build) -> nn.Module:
    arguments = dict(recipe.arguments)
    if recipe.name == "MultiheadAttention":
        return nn.MultiheadAttention(**arguments)
    num_layers, norm = arguments.pop("num_layers", None), arguments.pop("norm", None)
    layer = nn.TransformerEncoderLayer(**arguments)
    if num_layers is None:
        return layer
    final = None if norm is None else nn.LayerNorm(arguments["d_model"], eps=norm["eps"])
    # the ragged fast path is not for converted layers
    return nn.TransformerEncoder(layer, num_layers, final, enable_nested_tensor=False)
