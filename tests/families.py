"""Small random models of every supported Hugging Face family, and batches for them."""

from typing import NamedTuple

import torch
import transformers
from torch import Tensor

TEXT = ("bert", "roberta", "distilbert", "electra")
IMAGE = ("vit", "deit")
CLASSES, WIDTH, HEADS, LAYERS = 3, 12, 2, 3


class Family(NamedTuple):
    model: transformers.PreTrainedModel
    batch: dict[str, Tensor]


def make(name: str, **overrides: object) -> Family:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 17, "num_labels": CLASSES,
    }  # fmt: skip
    if name in IMAGE:
        config = transformers.AutoConfig.for_model(
            name, **sizes, image_size=10, patch_size=5, **overrides
        )
        kind = {"vit": "ViTForImageClassification", "deit": "DeiTForImageClassification"}[name]
        model = getattr(transformers, kind)(config)
        return Family(model, {"pixel_values": torch.randn(4, 3, 10, 10)})
    if name == "distilbert":
        sizes = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 17}
        sizes |= {"num_labels": CLASSES}
    config = transformers.AutoConfig.for_model(
        name, vocab_size=31, max_position_embeddings=40, pad_token_id=1, **(sizes | overrides)
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    return Family(model, text_batch([7, 3, 5, 7]))


def text_batch(lengths: list[int], extra: int = 0) -> dict[str, Tensor]:
    """Token ids and mask; `extra` more columns of padding leave the real tokens as they are."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 31, (len(lengths), max(lengths)), generator=generator)
    ids = torch.nn.functional.pad(ids, (0, extra), value=1)
    mask = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    return {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}
