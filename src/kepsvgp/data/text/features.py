"""Contextual features: every hidden layer of a frozen encoder, for every token.

As with ELMo, the mix of the layers is learnt by the model that uses them; here they are only
computed, once, and kept as half-precision numbers in a file that is mapped and never read as a
whole. A token's features lie where the token lies in the flat list of tokens.

References:
    Peters et al., 2018, arXiv:1802.05365.
"""

import hashlib
import math
import shutil
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor, nn

from kepsvgp.config.comparison import MINILM
from kepsvgp.data import store
from kepsvgp.data.examples import Ragged
from kepsvgp.data.progress import track
from kepsvgp.data.text import tokens
from kepsvgp.errors import UserError
from kepsvgp.files import expanded
from kepsvgp.inference.calls import to_device
from kepsvgp.ops.device import find_device

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

# tokens, padding included, that go through the encoder together
BATCH_TOKENS = 4_096


class Encoder(NamedTuple):
    """A folder with an encoder, its tokenizer, a name that changes with its weights, its device."""

    folder: Path
    tokenizer: "Tokenizer"
    key: str
    device: str


def find_encoder(name: str, device: str = "auto") -> Encoder:
    """The encoder `minilm`, one in a folder, or one that Hugging Face knows by this name."""
    config, *weights = encoder_files(name)
    folder = config.parent
    return Encoder(folder, tokens.load_tokenizer(folder), _identity(folder, weights), device)


def encoder_files(name: str) -> list[Path]:
    """The configuration and the weights of an encoder, with their index and its adapter."""
    folder = tokens.minilm_folder() if name == MINILM else expanded(name)
    if not folder.is_dir():
        folder = _download(name)
    # an index says which of several files has which weights; with PEFT, adapters load by themselves
    kinds = "*.safetensors", "*.safetensors.index.json", "adapter_config.json"
    weights, *others = (sorted(folder.glob(kind)) for kind in kinds)
    if not weights or not (folder / "config.json").is_file():
        raise UserError(
            f"data.encoder must have a config.json and weights in safetensors; {folder} has not."
        )
    return [folder / "config.json", *weights, *chain(*others)]


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise _missing_library() from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            "data.encoder must be 'minilm', a folder with a Hugging Face model, or the name of "
            f"one that is at hand or can be downloaded; got '{name}' ({reason})."
        ) from None


def _identity(folder: Path, weights: list[Path]) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def load_model(encoder: Encoder) -> "PreTrainedModel":
    """The encoder itself, frozen, on its device."""
    try:
        from transformers import AutoModel
        from transformers.utils import logging
    except ImportError:
        raise _missing_library() from None
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = AutoModel.from_pretrained(
            encoder.folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise store.refuse(
            encoder.folder, "a Hugging Face encoder", f"loading it failed ({error})"
        ) from None
    finally:
        if bars:
            logging.enable_progress_bar()
    # a pooler is above the layers that are taken, and many have none
    missing = sorted(name for name in report["missing_keys"] if "pooler." not in name)
    if missing:
        came = f"it lacks {', '.join(missing)[:200]}"
        raise store.refuse(encoder.folder, "an encoder with all its weights", came)
    device = find_device(encoder.device, is_binding=False)
    return model.eval().requires_grad_(False).to(device)  # pyright: ignore


def _missing_library() -> UserError:
    return UserError(
        "contextual features need the library transformers; it is not installed. "
        "Run `pip install 'kepsvgp[hf]'`."
    )


def contextual_features(
    encoder: Encoder, sequences: Ragged, path: Path
) -> Float[Tensor, "token layer width"]:
    """The features of all tokens, mapped from `path`; computed first if it is not there."""
    flat = sequences.flat
    store.once(path, lambda temporary: _compute(encoder, sequences, temporary))
    features = torch.from_numpy(store.mapped(path))
    if features.dtype != torch.float16 or features.ndim != 3 or len(features) != len(flat):
        came = f"it is {features.dtype} {tuple(features.shape)}"
        raise store.refuse(path, f"a float16 array for {len(flat)} tokens", came)
    return features


def features_of(
    encoder: Encoder, sequences: Ragged, model: "PreTrainedModel | None" = None
) -> Float[Tensor, "token layer width"]:
    """The features of all tokens, in memory: for a few new texts; `model` if it is loaded."""
    model = load_model(encoder) if model is None else model
    result = torch.empty(len(sequences.flat), *_shape(model), dtype=torch.float16)
    for rows, features in _encode(model, encoder, sequences):
        result[rows] = features
    return result


def num_positions(model: "PreTrainedModel") -> int:
    """How many tokens the model has positions for; the largest number where nothing limits it."""
    # models of the RoBERTa kind count positions from behind the padding token
    skipped = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings")
        and isinstance(module, nn.Embedding)
        and module.padding_idx is not None
    ]
    most = getattr(model.config, "max_position_embeddings", sys.maxsize)
    return most - max(skipped, default=0)


def _shape(model: "PreTrainedModel") -> tuple[int, int]:
    # the embedding counts as a layer
    return model.config.num_hidden_layers + 1, model.config.hidden_size


def _compute(encoder: Encoder, sequences: Ragged, path: Path) -> None:
    model = load_model(encoder)
    shape = (len(sequences.flat), *_shape(model))
    _check_room(path.parent, shape)
    array = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    for rows, features in _encode(model, encoder, sequences):
        array[rows.numpy()] = features.numpy()
    array.flush()


def _check_room(folder: Path, shape: tuple[int, ...]) -> None:
    needed, free = 2 * math.prod(shape), shutil.disk_usage(folder).free
    if needed > 0.9 * free:
        raise UserError(
            f"contextual features of {shape[0]} tokens need {needed / 1e9:.1f} GB in {folder}; "
            f"{free / 1e9:.1f} GB are free. Lower data.max_length, set data.train_limit and "
            "data.test_limit, or use data.encoder=none."
        )


def _encode(
    model: "PreTrainedModel", encoder: Encoder, sequences: Ragged
) -> Iterator[tuple[Tensor, Tensor]]:
    """Places in the flat list and their features, batch by batch of similar length."""
    longest = int(sequences.lengths.max()) if len(sequences.lengths) else 0
    limit = num_positions(model)
    if longest > limit:
        raise UserError(
            f"data.max_length must not exceed the {limit} positions of the encoder; "
            f"got sequences of {longest}."
        )
    plan = _batches(sequences)
    pad = tokens.padding_id(encoder.tokenizer)
    for index in track(plan, "encoding text", Console(stderr=True)):
        positions, mask = sequences.positions(index)
        ids = sequences.flat[positions].long().masked_fill_(~mask, pad)
        with torch.inference_mode():
            seen = {"input_ids": ids, "attention_mask": mask.long()}
            output = model(**to_device(seen, model.device), output_hidden_states=True)
            layers = torch.stack(output.hidden_states, dim=2)[mask.to(model.device)]
        # beyond the range of half precision lies infinity
        yield positions[mask], layers.clamp(-65504, 65504).to("cpu", torch.float16)


def _batches(sequences: Ragged) -> list[Tensor]:
    """Sequences from long to short, so many together that a batch has its number of tokens."""
    order = sequences.lengths.argsort(descending=True, stable=True)
    parts = []
    start = 0
    while start < len(order):
        length = max(1, int(sequences.lengths[order[start]]))
        size = max(1, BATCH_TOKENS // length)
        parts.append(order[start : start + size])
        start += size
    return parts
