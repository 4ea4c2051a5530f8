"""Small random models of every Hugging Face family that is served, and batches for them."""

from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from kepsvgp import KEPAttention

# those that the paper's layer can take the place of
TEXT = ("bert", "roberta", "distilbert", "electra")
IMAGE = ("vit", "deit")
CLASSES, WIDTH, HEADS, LAYERS = 3, 12, 2, 3

_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 17,
}  # fmt: skip
_TOKENS = {"vocab_size": 31, "max_position_embeddings": 40, "pad_token_id": 1}
_PATCHES = {"image_size": 10, "patch_size": 5}
_GROUPED = {"num_key_value_heads": 1, "head_dim": 4}
# what a family wants beside or in place of its sizes; None drops one
_OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 17},
    "albert": {"embedding_size": 8},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v3": {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4,
        "norm_rel_ebd": "layer_norm", "share_att_key": True,
    },
    "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "longformer": {"attention_window": 4},
    "bart": {
        "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": 2, "eos_token_id": 2,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 17, "decoder_ffn_dim": 17,
    },
    "t5": {
        "d_model": WIDTH, "d_kv": 4, "num_layers": LAYERS, "num_heads": HEADS, "d_ff": 17,
        "decoder_start_token_id": 0, "eos_token_id": 2,
    },
    "gpt2": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 40},
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "qwen3": _GROUPED,
    "beit": {"use_relative_position_bias": True},
    "swin": {
        "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2],
        "window_size": 4,
    },
    "videomae": {"num_frames": 4},
    "audio-spectrogram-transformer": {
        "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 32,
        "num_mel_bins": 16,
    },
    "wav2vec2": {
        "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3),
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 31,
        "layerdrop": 0.0,
    },
}  # fmt: skip
_OWN_SIZES = ("distilbert", "bart", "t5", "gpt2", "swin")
SENTENCES = (
    *TEXT, "camembert", "xlm-roberta", "albert", "mpnet", "deberta-v2", "deberta-v3", "modernbert",
    "longformer", "bart", "t5", "gpt2", "llama", "qwen2", "qwen3",
)  # fmt: skip
PICTURES = (*IMAGE, "beit", "dinov2", "clip", "siglip", "swin")
EVERY = (*SENTENCES, *PICTURES, "videomae", "audio-spectrogram-transformer", "wav2vec2")


class Family(NamedTuple):
    model: transformers.PreTrainedModel
    batch: dict[str, Tensor]


def make(name: str, **overrides: object) -> Family:
    torch.manual_seed(0)
    common = {} if name in _OWN_SIZES else dict(_SIZES)
    common |= {"num_labels": CLASSES} | _OWN.get(name, {}) | overrides
    if name in SENTENCES:
        kind = {"deberta-v3": "deberta-v2"}.get(name, name)
        config = transformers.AutoConfig.for_model(kind, **(_TOKENS | common))
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        return Family(model, text_batch([7, 3, 5, 7], eos=2 if name in ("bart", "t5") else None))
    if name in PICTURES or name == "videomae":
        return _picture(name, _PATCHES | common)
    config = transformers.AutoConfig.for_model(name, **common)
    shape = (4, 400) if name == "wav2vec2" else (4, 32, 16)
    kind = transformers.AutoModelForAudioClassification
    return Family(kind.from_config(config), {"input_values": torch.randn(shape)})


def _picture(name: str, settings: dict[str, Any]) -> Family:
    if name in ("clip", "siglip"):
        vision = settings | {"projection_dim": WIDTH}
        labels = {"num_labels": vision.pop("num_labels")}
        config = transformers.AutoConfig.for_model(name, vision_config=vision, **labels)
    else:
        config = transformers.AutoConfig.for_model(name, **settings)
    if name == "videomae":
        kind = transformers.AutoModelForVideoClassification
        return Family(kind.from_config(config), {"pixel_values": torch.randn(4, 4, 3, 10, 10)})
    size = settings["image_size"]
    kind = transformers.AutoModelForImageClassification
    model = (
        transformers.DeiTForImageClassification(config)
        if name == "deit"
        else kind.from_config(config)
    )
    return Family(model, {"pixel_values": torch.randn(4, 3, size, size)})


def text_batch(lengths: list[int], extra: int = 0, eos: int | None = None) -> dict[str, Tensor]:
    """Token ids and mask; `extra` more columns of padding leave the real tokens as they are."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 31, (len(lengths), max(lengths)), generator=generator)
    ids = torch.nn.functional.pad(ids, (0, extra), value=1)
    mask = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    ids = ids.masked_fill(~mask, 1)
    if eos is not None:
        ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = eos
    return {"input_ids": ids, "attention_mask": mask.long()}


def loud(name: str) -> Family:
    """A model that answers to its input: tiny random ones hardly do."""
    model, batch = make(name)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(5)
    return Family(model.eval(), batch)


def spread(model: nn.Module, scale: float = 5.0) -> nn.Module:
    """Makes draws that matter."""
    for layer in model.modules():
        if isinstance(layer, KEPAttention):
            eye = torch.eye(layer.rank).expand(layer.num_heads, layer.rank, -1, -1)
            layer.set_factor(scale * eye)
            with torch.no_grad():
                layer.to_dual.weight.normal_(generator=torch.Generator().manual_seed(0))
    return model
