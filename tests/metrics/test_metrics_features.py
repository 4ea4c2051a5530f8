"""Scores of features against loops, and against what they must be where it is known."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError

KNOWN, NEW, DIM, CLASSES = 61, 7, 5, 3


@pytest.fixture
def data(generator: torch.Generator) -> dict[str, torch.Tensor]:
    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    weight, bias = normal(CLASSES, DIM), normal(CLASSES)
    known, new = normal(KNOWN, DIM) + 2, normal(NEW, DIM)
    labels = torch.arange(KNOWN) % CLASSES
    logits, new_logits = known @ weight.T + bias, new @ weight.T + bias
    return {
        "known": known, "new": new, "labels": labels, "weight": weight, "bias": bias,
        "logits": logits, "new_logits": new_logits,
    }  # fmt: skip


@pytest.mark.parametrize("normalised", [True, False])
def test_mahalanobis_is_the_distance_from_the_nearest_class(data, normalised: bool) -> None:
    known, new, labels = (data[name].numpy() for name in ("known", "new", "labels"))
    if normalised:
        known, new = (x / np.sqrt((x**2).sum(1, keepdims=True)) for x in (known, new))
    means = [
        np.mean([x for x, y in zip(known, labels, strict=True) if y == c], 0) for c in range(3)
    ]
    spread = sum(np.outer(x - means[y], x - means[y]) for x, y in zip(known, labels, strict=True))
    expected = [min((x - m) @ np.linalg.solve(spread / KNOWN, x - m) for m in means) for x in new]

    fitted = metrics.Mahalanobis.fit(data["known"], data["labels"], normalised=normalised)

    assert_close(fitted(data["new"]), torch.tensor(expected))


@pytest.mark.parametrize("k", [1, 4, KNOWN])
@pytest.mark.parametrize("chunk", [2, 100])
def test_neighbours_are_those_of_scikit_learn(data, k: int, chunk: int) -> None:
    known, new = (torch.nn.functional.normalize(data[n], dim=1).numpy() for n in ("known", "new"))
    expected = NearestNeighbors(n_neighbors=k).fit(known).kneighbors(new)[0][:, -1]

    found = metrics.nearest_neighbour_score(data["known"] * 3, data["new"], k=k, chunk=chunk)

    assert_close(found, torch.tensor(expected))


def test_vim_weighs_the_virtual_logit_as_its_paper_does(data) -> None:
    x, w = data["known"].numpy(), data["weight"].numpy()
    origin = -np.linalg.pinv(w) @ data["bias"].numpy()
    # the principal subspace by the singular vectors of the data
    principal = np.linalg.svd(x - origin, full_matrices=True)[2][:2].T
    outside = np.eye(DIM) - principal @ principal.T

    def norm(rows: np.ndarray) -> np.ndarray:
        return np.linalg.norm((rows - origin) @ outside, axis=1)

    alpha = data["logits"].numpy().max(1).mean() / norm(x).mean()
    virtual = alpha * norm(data["new"].numpy())
    all_logits = np.concatenate([data["new_logits"].numpy(), virtual[:, None]], 1)
    expected = np.exp(virtual) / np.exp(all_logits).sum(1)

    fitted = metrics.ViM.fit(data["known"], data["logits"], data["weight"], data["bias"], dim=2)

    # the softmax of the virtual class is the sigmoid of the score
    assert_close(fitted(data["new"], data["new_logits"]).sigmoid(), torch.tensor(expected))


@pytest.mark.parametrize("p", [1.0, 2.5, 4.0])
def test_max_logit_is_divided_by_the_norm_of_centred_logits(data, p: float) -> None:
    expected = []
    for row in data["new_logits"].tolist():
        z = [f - sum(row) / len(row) for f in row]
        expected.append(-max(z) / math.pow(sum(abs(f) ** p for f in z), 1 / p))
    found = metrics.max_logit_pnorm_score(data["new_logits"], p=p)
    assert_close(found, torch.tensor(expected, dtype=torch.float64))
    # neither an offset nor a scale matters, and samples are averaged
    assert_close(metrics.max_logit_pnorm_score(7 + 3 * data["new_logits"], p=p), found)
    both = torch.stack([data["new_logits"], data["new_logits"].flip(0)])
    assert_close(metrics.max_logit_pnorm_score(both, p=p), (found + found.flip(0)) / 2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda d: metrics.nearest_neighbour_score(d["known"], d["new"], k=0),
            "k must lie between",
        ),
        (lambda d: metrics.max_logit_pnorm_score(d["logits"], p=0), "p must be positive"),
        (
            lambda d: metrics.ViM.fit(d["known"], d["logits"], d["weight"], d["bias"], dim=DIM),
            "dim must lie between 1 and 4",
        ),
    ],
)
def test_scores_of_features_refuse_what_has_no_meaning(data, ask, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(data)
