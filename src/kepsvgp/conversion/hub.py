"""Hugging Face's own ways in and out of a converted model, and its hub.

The `config.json` that `save_pretrained` writes has a model type of ours. transformers opens it
once `register` has told it how. Until then it refuses the folder, and so do classes of its own:
the sizes of the model are nowhere but in the family's configuration, which lies inside.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

from torch import nn

from kepsvgp.conversion.base import Adapter
from kepsvgp.conversion.build import MODEL_TYPE, library
from kepsvgp.conversion.folder import load_folder, save_pretrained
from kepsvgp.conversion.mean import converted_layers
from kepsvgp.errors import UserError, told

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "revision", "token")
# what transformers asks for by itself, and what makes no difference to a model
_HARMLESS = ("adapter_kwargs", "config", "dtype", "torch_dtype", "trust_remote_code")
_AUTO = (
    "AutoModel",
    "AutoModelForAudioClassification",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
    "AutoModelForVideoClassification",
)


@told
def load_pretrained(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    adapters: Sequence[Adapter] = (),
    **download: Any,
) -> nn.Module:
    """The converted model that `save_pretrained` wrote, in evaluation mode.

    Args:
        folder: The folder, or the name of a model on the Hugging Face hub, `owner/name`.
        model: For a class of your own: an instance of it, not converted.
        adapters: The adapters it was converted with, where they are your own.
        download: For the hub: `revision`, `token`, and the like of `snapshot_download`.

    Examples:
        >>> save_pretrained(convert(model), "my-model")
        >>> load_pretrained("my-model").training
        False
    """
    path = Path(folder)
    if not path.exists() and _HUB_NAME.fullmatch(str(folder)):
        path = _downloaded(str(folder), download)
    return adopt(load_folder(path, model=model, adapters=adapters))


def _downloaded(name: str, options: Mapping[str, Any]) -> Path:
    try:
        return Path(library("huggingface_hub").snapshot_download(name, **options))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{name} must be a folder that save_pretrained wrote, or a model on the Hugging Face "
            f"hub that is at hand or can be downloaded; it is not ({reason})."
        ) from None


@told
def push_to_hub(
    model: nn.Module,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    create_pr: bool | None = None,
    **saving: Any,
) -> str:
    """Saves a converted model on the Hugging Face hub, and says where.

    Args:
        model: A converted model.
        repo_id: Its name there, `owner/name`; made if need be.
        private: Whether others may see it, where it is new.
        token: Whose it is; as logged in by default.
        revision: The branch; `main` by default.
        commit_message: What is new.
        create_pr: Whether to ask for a change instead of making it.
        saving: As of `save_pretrained`.
    """
    api = library("huggingface_hub").HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, **saving)
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, create_pr=create_pr,
            commit_message=commit_message or "Upload a model of kepsvgp",
        )  # fmt: skip
    return name


def adopt(model: nn.Module) -> nn.Module:
    """Lets a converted Hugging Face model save itself as `save_pretrained` would, and returns it.

    `Trainer` calls that. The model is no longer that of the name it was loaded by, under which
    adapters of PEFT would look for it.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return model
    register()
    kinds: list[type] = [transformers.PreTrainedModel]
    if "peft" in sys.modules:
        kinds.append(sys.modules["peft"].PeftModel)
    for part in model.modules():
        if isinstance(part, tuple(kinds)) and converted_layers(part):
            known: Any = part
            known.name_or_path = ""
            # unlike a method, these are bound anew in a copy
            known.save_pretrained = partial(_save, part)
            known.push_to_hub = partial(_push, part)
    return model


def _save(
    model: nn.Module,
    save_directory: Path | str,
    is_main_process: bool = True,
    state_dict: Mapping[str, Any] | None = None,
    push_to_hub: bool = False,
    **options: Any,
) -> None:
    """`PreTrainedModel.save_pretrained` of a converted model; shards there are none."""
    if is_main_process:
        save_pretrained(model, save_directory, state_dict=state_dict)
    if is_main_process and push_to_hub:
        _push(model, options.pop("repo_id", Path(save_directory).name), **options)


def _push(model: nn.Module, repo_id: str, max_shard_size: Any = None, **options: Any) -> str:
    """`PreTrainedModel.push_to_hub` of a converted model."""
    return push_to_hub(model, repo_id, **options)


@cache
def register() -> None:
    """Tells transformers how folders of `save_pretrained` are opened."""
    transformers = library("transformers")
    config = type("ConvertedConfig", (transformers.PreTrainedConfig,), {"model_type": MODEL_TYPE})
    transformers.AutoConfig.register(MODEL_TYPE, config)
    for name in _AUTO:
        auto = getattr(transformers, name)
        known = {"auto": auto, "config_class": config}
        auto.register(config, type(f"Converted{name}", (_Opener,), known))
    _divert(transformers.PreTrainedModel, "save_pretrained", _save)
    _divert(transformers.PreTrainedModel, "push_to_hub", _push)


def _divert(kind: type, name: str, ours: Callable[..., Any]) -> None:
    """Also serves models of which only a part was given to `convert`, and so to `adopt`."""
    theirs = getattr(kind, name)

    @wraps(theirs)
    def either(model: nn.Module, *args: Any, **options: Any) -> Any:
        return (ours if converted_layers(model) else theirs)(model, *args, **options)

    setattr(kind, name, either)


class _Opener:
    """What transformers calls to open a converted model by one of its `Auto` classes."""

    auto: Any
    config_class: Any

    @classmethod
    def from_pretrained(cls, name: Path | str, *args: Any, **options: Any) -> nn.Module:
        """The model, if it is of the kind that was asked for and as it was saved."""
        download = {key: options.pop(key) for key in _DOWNLOAD if key in options}
        known = {key: options.pop(key, None) for key in _HARMLESS}
        odd = [key for key, value in options.items() if value and not key.startswith("_from")]
        if args or odd:
            raise UserError(
                f"{name} must be opened as it was saved; got {', '.join(odd) or args}. Open it "
                "by kepsvgp.load_pretrained, and change the model that you get."
            )
        model: Any = load_pretrained(name, **download)
        _check_config(name, known["config"], model.config)
        kind = cls.auto._model_mapping.get(type(model.config), ())
        if not isinstance(model, kind):
            raise UserError(
                f"{name} must be opened as what it is, a {type(model).__name__}, which is no "
                f"{cls.auto.__name__}; or by kepsvgp.load_pretrained."
            )
        if getattr(known["config"], "_attn_implementation", None) is not None:
            model.set_attn_implementation(known["config"]._attn_implementation)
        dtype = known["dtype"] or known["torch_dtype"]
        return model if dtype in (None, "auto") else model.to(dtype)


def _check_config(name: Path | str, asked: Any, found: Any) -> None:
    """Refuses changes of the configuration, which would be lost."""
    for key in ("id2label", "output_attentions", "output_hidden_states", "problem_type"):
        values = [getattr(config, key, None) for config in (asked, found)]
        if asked is not None and values[0] != values[1]:
            raise UserError(
                f"{name} must be opened as it was saved, with {key}={values[1]!r}; got "
                f"{values[0]!r}."
            )
