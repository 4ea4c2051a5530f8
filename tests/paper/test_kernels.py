import pytest
import torch

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.attention.sgpa import SGPAttention
from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.maths import ksvd
from kepsvgp.paper.kernels import (
    agreement,
    factored_svd,
    layer_features,
    layer_svd,
    normalised_spectrum,
    random_scores,
)

LAYERS = {
    "kep": lambda: KEPAttention(12, 3, rank=2),
    "primal": lambda: PrimalAttention(12, 3, rank=2),
    "softmax": lambda: SoftmaxAttention(12, 3),
    "sgpa": lambda: SGPAttention(12, 3, num_inducing=5),
}


@pytest.mark.parametrize("num_tokens", [3, 11])
def test_factored_svd_is_the_svd_of_the_kernel(num_tokens, generator) -> None:
    q, k = torch.randn(2, 5, num_tokens, 4, generator=generator, dtype=torch.float64)

    svd = factored_svd(ksvd.features(q), ksvd.features(k))

    kernel = ksvd.attention_kernel(q, k)
    exact = ksvd.exact_svd(kernel, min(4, num_tokens))
    torch.testing.assert_close(svd.values, exact.values)
    rebuilt = svd.left * svd.values.unsqueeze(-2) @ svd.right.mT
    torch.testing.assert_close(rebuilt, kernel)


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_svd_ignores_padding(kind, generator) -> None:
    layer = LAYERS[kind]().eval()
    x = torch.randn(2, 7, 12, generator=generator)
    padded = torch.cat([x, torch.randn(2, 4, 12, generator=generator)], dim=1)
    mask = torch.arange(11).expand(2, 11) < 7

    with torch.no_grad():
        short, long = layer_svd(layer, x), layer_svd(layer, padded, mask)

    rank = short.values.shape[-1]
    torch.testing.assert_close(long.values[..., :rank], short.values)
    assert (long.values[..., rank:] < 1e-12).all()


def test_softmax_kernel_is_what_the_layer_applies(generator) -> None:
    layer = SoftmaxAttention(12, 3).eval()
    x = torch.randn(2, 7, 12, generator=generator)
    values = layer.to_qkv(x).unflatten(-1, (9, 4)).transpose(1, 2)[:, 6:]

    with torch.no_grad():
        svd = layer_svd(layer, x)
        kernel = (svd.left * svd.values.unsqueeze(-2) @ svd.right.mT).float()
        out = layer.to_output((kernel @ values).transpose(1, 2).flatten(-2))

        torch.testing.assert_close(out, layer(x))


def test_agreement_is_one_for_exact_vectors_in_any_order_and_of_any_length(generator) -> None:
    q, k = torch.randn(2, 5, 9, 4, generator=generator, dtype=torch.float64)
    svd = factored_svd(ksvd.features(q), ksvd.features(k))
    exact = svd.left[..., :3]
    # E = H_e Λ, the columns given in another order
    scores = (exact * svd.values[..., None, :3])[..., [2, 0, 1]].mT

    found = agreement(scores, exact)

    torch.testing.assert_close(found.alignment, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.principal, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.overlap, torch.ones((), dtype=torch.float64))


def test_agreement_of_a_rotated_basis_is_one_for_subspaces_alone(generator) -> None:
    basis = torch.linalg.qr(torch.randn(9, 3, generator=generator, dtype=torch.float64)).Q
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q

    found = agreement((basis @ rotation).mT, basis)

    torch.testing.assert_close(found.principal, torch.ones(3, dtype=torch.float64))
    assert found.alignment.max() < 0.99


@pytest.mark.parametrize(
    ("rows", "exact", "principal"),
    [
        ([0, 1], [2, 3], [0.0, 0.0]),
        # two equal columns span one direction
        ([0, 0], [0, 1], [1.0, 0.0]),
    ],
)
def test_agreement_counts_directions_that_the_scores_lack_as_zero(rows, exact, principal) -> None:
    eye, cosines = torch.eye(6, dtype=torch.float64), torch.tensor(principal, dtype=torch.float64)

    found = agreement(eye[rows], eye[:, exact])

    torch.testing.assert_close(found.principal, cosines)
    torch.testing.assert_close(found.overlap, cosines.square().mean())


def test_random_scores_lie_in_the_span_of_the_features(generator) -> None:
    layer = KEPAttention(12, 3, rank=2).eval()
    phi = layer_features(layer, torch.randn(2, 9, 12, generator=generator)).q.detach()

    scores = random_scores(phi, 2)

    projector = phi @ torch.linalg.pinv(phi)
    torch.testing.assert_close(projector @ scores.mT, scores.mT)
    torch.testing.assert_close(random_scores(phi, 2), scores)


def test_normalised_spectrum_weighs_kernels_alike_and_skips_empty_ones() -> None:
    values = torch.tensor([[3.0, 1.0], [30.0, 10.0], [0.0, 0.0]])

    torch.testing.assert_close(normalised_spectrum(values), torch.tensor([0.75, 0.25]))
