"""The paper's two readings as changes to a configuration, which by itself is ours.

`text` is what the paper prints; where it is silent, what the authors' program does. `program` is
that program. `docs/decisions.md` has the table, and what neither takes over.
"""

from typing import TYPE_CHECKING

from kepsvgp.config.plugins import find_method
from kepsvgp.errors import UserError, near_miss

if TYPE_CHECKING:
    from kepsvgp.config.sections import RunConfig

TITLES = {
    "text": "the paper's equations as printed",
    "program": "what the authors' program does",
    "ours": "this library's own choices",
}

_BOTH = (
    "model.kep.ksvd_loss=objective",
    "objective.ksvd_weight=1",
    "model.kep.start=program",
    "model.kep.refit=false",
    "train.clip_norm=none",
    "train.select=score",
    "prediction.num_samples=10",
)
_GENERAL = {
    "text": (
        *_BOTH,
        "model.kep.projection=free",
        "model.kep.noise=joint",
        "objective.kl_weight=1",
        "prediction.average=probs",
    ),
    "program": (
        *_BOTH,
        "model.kep.projection=landmark",
        "model.kep.num_landmarks=distinct",
        "model.kep.noise=token",
        "objective.kl_weight=whole",
    ),
}
_CIFAR = ("data.normalisation=program", "objective.ksvd_weight=10")
_OF_DATA = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "imdb": ("data.split=paper", "model.embedding_scale=1", "objective.ksvd_weight=10"),
    "cola": ("model.embedding_scale=1", "model.dropout=0.1", "model.kep.num_landmarks=10"),
}


def variant_settings(variant: str, config: "RunConfig") -> tuple[str, ...]:
    """What makes a configuration a variant, as `key=value`."""
    if variant not in TITLES:
        known = ", ".join(TITLES)
        hint = near_miss(variant, TITLES)
        raise UserError(f"--variant must be one of {known}; got {variant!r}.{hint}")
    if variant == "ours":
        return ()
    dataset, is_kep = config.data.name, find_method(config.method).name == "kep"
    settings = (*_GENERAL[variant], *_OF_DATA.get(dataset, ()))
    if dataset in ("imdb", "cola"):
        settings += (f"train.weight_decay={'5e-5' if is_kep else '1e-5'}",)
    if variant == "program":
        # its cosine is as long as the training, and begins after the warm-up
        settings += (f"train.decay_epochs={config.train.epochs}",)
        # SGPA's own program averages probabilities
        settings += (f"prediction.average={'logits' if is_kep else 'probs'}",)
    if (variant, dataset) == ("program", "cola"):
        settings += ("data.split=program",)
    return settings
