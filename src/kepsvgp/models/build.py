"""The paper's Transformers from their configuration."""

from typing import Any, NamedTuple

from torch import nn

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import ModelConfig
from kepsvgp.models.blocks import Classifier
from kepsvgp.models.text import TextTransformer
from kepsvgp.models.vit import VisionTransformer, num_patches


class ImageShape(NamedTuple):
    """What an image model must know of its inputs."""

    channels: int
    height: int
    width: int


class TextShape(NamedTuple):
    """What a text model must know of its inputs; no features without a frozen encoder."""

    vocab_size: int
    feature_layers: int = 0
    feature_dim: int = 0


InputShape = ImageShape | TextShape


def build_model(
    config: ModelConfig, shape: InputShape, num_classes: int, method: Any = "kep"
) -> Classifier:
    """The network of a method, by its name or class, for inputs of this shape."""
    return find_method(method).network(config, shape, num_classes)


def sequence_length(config: ModelConfig, shape: InputShape) -> int | None:
    """The number of tokens that all inputs share; None for texts, whose lengths differ."""
    if isinstance(shape, ImageShape):
        return num_patches((shape.height, shape.width), config.patch_size)
    return None


def transformer(
    config: ModelConfig, shape: InputShape, attentions: list[nn.Module], last: nn.Module
) -> VisionTransformer | TextTransformer:
    """The paper's Transformer with these attention layers, one a block, and this head."""
    sizes: dict[str, Any] = {name: getattr(config, name) for name in ("dim", "mlp_dim", "dropout")}
    if isinstance(shape, ImageShape):
        sides = (shape.height, shape.width)
        return VisionTransformer(
            attentions,
            last,
            image_size=sides,
            channels=shape.channels,
            patch_size=config.patch_size,
            **sizes,
        )
    return TextTransformer(
        attentions,
        last,
        embedding_dim=config.embedding_dim,
        embedding_scale=config.embedding_scale,
        encoder_layers=config.encoder_layers,
        **shape._asdict(),
        **sizes,
    )
