"""Peers of the novelty: what other scores make of the last features of a model, and its logits."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.inference.pooled import gather_pooled
from kepsvgp.inference.prediction import Direct, Predictor
from kepsvgp.metrics import (
    Mahalanobis,
    ViM,
    energy_score,
    max_logit_pnorm_score,
    nearest_neighbour_score,
)
from kepsvgp.models.blocks import Classifier

NEIGHBOURS = 50
# so many training examples are looked at for neighbours, at most
MOST_KNOWN = 10_000


class Peers(NamedTuple):
    """Scores of foreignness that were fitted to the training set, with draws at their mean."""

    gather: Callable[[Iterable[Any]], Any]
    head: nn.Linear
    known: Float[Tensor, "known dim"]
    mahalanobis: Mahalanobis
    vim: ViM

    @classmethod
    def fit(
        cls,
        model: Classifier,
        train: Iterable[Any],
        *,
        device: torch.device | None = None,
    ) -> "Peers":
        """One pass over the training set."""

        def gather(batches: Iterable[Any]) -> Any:
            # noise that has no mean, as SGPA's, is the same every time
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return gather_pooled(model, batches, None, seed=None, device=device)

        head = model.head
        assert isinstance(head, nn.Linear)
        (features,), labels = gather(train)
        return cls(
            gather,
            head,
            features[:: -(-len(features) // MOST_KNOWN)],
            Mahalanobis.fit(features, labels),
            ViM.fit(features, _logits(head, features), head.weight, head.bias),
        )

    def scores(self, batches: Iterable[Any]) -> dict[str, Float[Tensor, " example"]]:
        """Every score by name, larger for what is more foreign."""
        (features,), _ = self.gather(batches)
        logits = _logits(self.head, features)
        k = min(NEIGHBOURS, len(self.known))
        return {
            "energy": energy_score(logits),
            "max_logit_pnorm": max_logit_pnorm_score(logits),
            "mahalanobis": self.mahalanobis(features),
            "nearest_neighbour": nearest_neighbour_score(self.known, features, k=k),
            "vim": self.vim(features, logits),
        }


def classifier_of(predictor: nn.Module | Predictor) -> Classifier | None:
    """The model that answers by itself, if its last map is linear, as peers need it."""
    model = predictor.model if isinstance(predictor, Direct) else predictor
    if isinstance(model, Classifier) and isinstance(model.head, nn.Linear):
        return model
    return None


@torch.no_grad()
def _logits(head: nn.Linear, features: Tensor) -> Float[Tensor, "example class"]:
    return head(features)
