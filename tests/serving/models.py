"""Small converted models in their folders, and pictures."""

from pathlib import Path
from typing import Any

import families
import numpy as np
import transformers
from PIL import Image

from kepsvgp import convert, save_pretrained

WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "a"]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def text_folder(path: Path, family: str = "bert") -> Path:
    model, _ = families.make(family)
    convert(model, rank=3, posterior_scale=1.0)
    # answers that differ
    for name, parameter in model.named_parameters():
        parameter.data.mul_(10.0 if parameter.ndim == 2 and "embedding" not in name else 1.0)
    save_pretrained(model, path, processor=tokenizer())
    return path


def picture(path: Path, size: tuple[int, int], seed: int = 0) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).save(path)
