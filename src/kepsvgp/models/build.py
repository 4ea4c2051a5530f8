"""Models from their configuration: the only place that branches on names."""

from typing import NamedTuple, get_args

from torch import nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.attention.sgpa import SGPAttention
from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.config.sections import AttentionKind, HeadKind, KepConfig, ModelConfig
from kepsvgp.errors import UserError
from kepsvgp.models.blocks import Classifier
from kepsvgp.models.sngp import RandomFeatureGP, bound_spectra
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
    config: ModelConfig,
    shape: InputShape,
    num_classes: int,
    *,
    attention: AttentionKind = "kep",
    head: HeadKind = "linear",
) -> Classifier:
    """A Transformer for inputs of this shape.

    Its last blocks, as many as `config` says, have the named attention, the others softmax.
    """
    num_tokens = None
    if isinstance(shape, ImageShape):
        num_tokens = num_patches((shape.height, shape.width), config.patch_size)
    num_softmax = config.depth - config.num_replaced(attention)
    attentions = [
        _attention("softmax" if layer < num_softmax else attention, config, num_tokens)
        for layer in range(config.depth)
    ]
    last = _head(head, config, num_classes)
    model = _transformer(config, shape, attentions, last)
    if head == "sngp":
        bound_spectra(model.blocks[-1], config.sngp.spectral_bound)
    return model


def _transformer(
    config: ModelConfig, shape: InputShape, attentions: list[nn.Module], last: nn.Module
) -> VisionTransformer | TextTransformer:
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


def _attention(kind: AttentionKind, config: ModelConfig, num_tokens: int | None) -> nn.Module:
    """One attention layer; `num_tokens` is the length of all sequences, if they share one."""
    kep = config.kep
    match kind:
        case "softmax":
            return SoftmaxAttention(
                config.dim,
                config.num_heads,
                attention_dropout=config.attention_dropout,
                dropout=config.dropout,
            )
        case "kep":
            by_task = "add" if num_tokens is None else "concat"
            return KEPAttention(
                config.dim,
                config.num_heads,
                rank=kep.rank,
                merge=by_task if kep.merge == "auto" else kep.merge,
                num_tokens=num_tokens,
                num_landmarks=kep.num_landmarks,
                projection=kep.projection,
                noise=kep.noise,
                branches=kep.branches,
                qk_bias=kep.qk_bias,
                dropout=config.dropout,
                ksvd_loss=kep.ksvd_loss,
                posterior_scale=kep.posterior_scale,
            )
        case "primal":
            return PrimalAttention(
                config.dim,
                config.num_heads,
                rank=kep.rank,
                num_landmarks=kep.num_landmarks,
                projection=kep.projection,
                qk_bias=kep.qk_bias,
                dropout=config.dropout,
            )
        case "sgpa":
            by_task = "exponential" if num_tokens is None else "ard"
            return SGPAttention(
                config.dim,
                config.num_heads,
                num_inducing=config.sgpa.num_inducing,
                kernel=by_task if config.sgpa.kernel == "auto" else config.sgpa.kernel,
                dropout=config.dropout,
            )
        case _:
            kinds = ", ".join(get_args(AttentionKind))
            raise UserError(f"attention must be one of {kinds}; got {kind!r}.")


def _head(kind: HeadKind, config: ModelConfig, num_classes: int) -> nn.Module:
    """What maps pooled features to logits."""
    match kind:
        case "linear":
            return nn.Linear(config.dim, num_classes)
        case "sngp":
            return RandomFeatureGP(
                config.dim,
                num_classes,
                num_features=config.sngp.num_features,
                lengthscale=config.sngp.lengthscale,
            )
        case "svdkl":
            # needs an extra, which other methods do without
            from kepsvgp.models.svdkl import AdditiveGridGP

            return AdditiveGridGP(
                config.dim,
                num_classes,
                num_features=max(config.svdkl.num_features, num_classes),
                grid_size=config.svdkl.grid_size,
            )
        case _:
            kinds = ", ".join(get_args(HeadKind))
            raise UserError(f"head must be one of {kinds}; got {kind!r}.")


def vit_cifar(
    num_classes: int,
    attention: AttentionKind = "kep",
    *,
    depth: int = 7,
    kep_layers: int | None = 1,
    dropout: float = 0.1,
    kep: KepConfig | None = None,
) -> Classifier:
    """The paper's ViT for 32×32 images: width 384, 12 heads, 4×4 patches.

    Table 4 compares with 5 layers (CIFAR-10) and 6 layers (CIFAR-100). `kep_layers=None` puts
    the attention into all layers. KEP layers have landmarks, as in the authors' program, unless
    `kep` says otherwise.
    """
    config = ModelConfig(
        depth=depth,
        kep_layers="all" if kep_layers is None else kep_layers,
        dropout=dropout,
        kep=kep or KepConfig(projection="landmark"),
    )
    return build_model(config, ImageShape(3, 32, 32), num_classes, attention=attention)


def transformer_imdb(
    vocab_size: int,
    attention: AttentionKind = "kep",
    *,
    num_classes: int = 2,
    dropout: float = 0.1,
    kep: KepConfig | None = None,
) -> Classifier:
    """The paper's Transformer for IMDB: one layer of width 128 with 8 heads.

    Projection as in `vit_cifar`; embeddings begin as in the authors' program, too.
    """
    config = ModelConfig(
        depth=1,
        dim=128,
        num_heads=8,
        mlp_dim=128,
        embedding_dim=128,
        embedding_scale=1.0,
        dropout=dropout,
        kep=kep or KepConfig(projection="landmark"),
    )
    return build_model(config, TextShape(vocab_size), num_classes, attention=attention)


def transformer_cola(
    vocab_size: int,
    attention: AttentionKind = "kep",
    *,
    feature_layers: int,
    feature_dim: int,
    num_classes: int = 2,
    kep_layers: int | None = 1,
    dropout: float = 0.1,
    kep: KepConfig | None = None,
) -> Classifier:
    """The paper's Transformer for CoLA: two layers of width 256 with 4 heads.

    Token embeddings of width 128 stand beside a learnt mix of a frozen encoder's layers.
    Projection as in `vit_cifar`, embeddings as in `transformer_imdb`.
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
        kep=kep or KepConfig(rank=5, projection="landmark", num_landmarks=10),
    )
    shape = TextShape(vocab_size, feature_layers, feature_dim)
    return build_model(config, shape, num_classes, attention=attention)
