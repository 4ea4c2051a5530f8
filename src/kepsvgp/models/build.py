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
    if isinstance(shape, ImageShape):
        return VisionTransformer(
            attentions,
            last,
            image_size=(shape.height, shape.width),
            channels=shape.channels,
            patch_size=config.patch_size,
            dim=config.dim,
            mlp_dim=config.mlp_dim,
            dropout=config.dropout,
        )
    return TextTransformer(
        attentions,
        last,
        vocab_size=shape.vocab_size,
        embedding_dim=config.embedding_dim,
        embedding_scale=config.embedding_scale,
        dim=config.dim,
        mlp_dim=config.mlp_dim,
        dropout=config.dropout,
        feature_layers=shape.feature_layers,
        feature_dim=shape.feature_dim,
        encoder_layers=config.encoder_layers,
    )


def vit_cifar(
    num_classes: int,
    method: Any = "kep",
    *,
    depth: int = 7,
    kep_layers: int | None = 1,
    dropout: float = 0.1,
    **sections: Any,
) -> Classifier:
    """The paper's ViT for 32×32 images: width 384, 12 heads, 4×4 patches.

    Table 4 compares with 5 layers (CIFAR-10) and 6 layers (CIFAR-100). `kep_layers=None` puts
    the attention into all layers. `sections` are settings of methods: `kep={"rank": 5}`.
    """
    layers = "all" if kep_layers is None else kep_layers
    config = ModelConfig(depth=depth, kep_layers=layers, dropout=dropout, **sections)
    return build_model(config, ImageShape(3, 32, 32), num_classes, method)


def transformer_imdb(
    vocab_size: int,
    method: Any = "kep",
    *,
    num_classes: int = 2,
    dropout: float = 0.1,
    **sections: Any,
) -> Classifier:
    """The paper's Transformer for IMDB: one layer of width 128 with 8 heads.

    Embeddings begin as in the authors' program; `sections` as in `vit_cifar`.
    """
    config = ModelConfig(
        depth=1,
        dim=128,
        num_heads=8,
        mlp_dim=128,
        embedding_dim=128,
        embedding_scale=1.0,
        dropout=dropout,
        **sections,
    )
    return build_model(config, TextShape(vocab_size), num_classes, method)


def transformer_cola(
    vocab_size: int,
    method: Any = "kep",
    *,
    feature_layers: int,
    feature_dim: int,
    num_classes: int = 2,
    kep_layers: int | None = 1,
    dropout: float = 0.1,
    **sections: Any,
) -> Classifier:
    """The paper's Transformer for CoLA: two layers of width 256 with 4 heads, KEP's rank 5.

    Token embeddings of width 128 stand beside a learnt mix of a frozen encoder's layers;
    embeddings and `sections` as in `transformer_imdb`.
    """
    config = ModelConfig(
        depth=2,
        dim=256,
        num_heads=4,
        mlp_dim=256,
        embedding_dim=128,
        embedding_scale=1.0,
        dropout=dropout,
        kep_layers="all" if kep_layers is None else kep_layers,
        **{"kep": {"rank": 5}, **sections},
    )
    shape = TextShape(vocab_size, feature_layers, feature_dim)
    return build_model(config, shape, num_classes, method)
