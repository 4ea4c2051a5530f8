"""Small models and data that the tests of all methods share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kepsvgp.config.sections import ModelConfig
from kepsvgp.models import Classifier, ImageShape, TextShape, build_model

EXAMPLES, CLASSES = 23, 3
IMAGES = ImageShape(channels=1, height=8, width=8)
TEXTS = TextShape(vocab_size=17, feature_layers=2, feature_dim=5)
CONFIG = ModelConfig(
    depth=2,
    dim=14,
    num_heads=2,
    mlp_dim=13,
    embedding_dim=11,
    dropout=0.2,
    attention_dropout=0.3,
    kep={"rank": 3},
    sgpa={"num_inducing": 4},
    sngp={"num_features": 19},
    svdkl={"num_features": 5, "grid_size": 16},
)


def make_model(shape: ImageShape | TextShape, method: str = "msp") -> Classifier:
    torch.manual_seed(1)
    model = build_model(CONFIG, shape, CLASSES, method)
    with torch.no_grad():
        # far from uniform probabilities, so that differences can be seen
        for parameter in model.head.parameters():
            parameter.mul_(3)
    return model.eval()


def make_batches(
    shape: ImageShape | TextShape, batch_size: int, *, seed: int = 0
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """The same examples however they are batched; texts are padded to the longest of a batch."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    lengths = torch.randint(1, 10, (EXAMPLES,), generator=generator)
    if isinstance(shape, ImageShape):
        inputs: Any = torch.randn(EXAMPLES, *shape, generator=generator)
    else:
        tokens = torch.randint(shape.vocab_size, (EXAMPLES, 10), generator=generator)
        features = torch.randn(EXAMPLES, 10, 2, 5, generator=generator)
    for index in torch.arange(EXAMPLES).split(batch_size):
        if isinstance(shape, ImageShape):
            yield inputs[index], labels[index], index
            continue
        longest = int(lengths[index].max())
        batch = {
            "tokens": tokens[index, :longest],
            "mask": torch.arange(longest) < lengths[index, None],
            "features": features[index, :longest],
        }
        yield batch, labels[index], index
