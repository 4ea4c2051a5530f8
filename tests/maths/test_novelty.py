import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.maths import novelty
from kepsvgp.maths.novelty import Moments

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture
def features(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Queries and keys of three heads, 29 tokens, five features, of different spread."""
    q = torch.randn(3, 29, 5, generator=generator, dtype=torch.float64)
    k = torch.randn(3, 29, 5, generator=generator, dtype=torch.float64) * torch.arange(1, 6)
    return q, k


def test_moments_are_those_of_the_real_tokens(features) -> None:
    q, _ = features
    is_real = torch.arange(29) % 3 != 0
    found = novelty.moments(q, is_real)
    real = q[:, is_real]
    assert found.num_tokens == is_real.sum()
    assert_close(found.mean, real.mean(1), **EXACT)
    assert_close(found.covariance, torch.stack([h.T.cov(correction=0) for h in real]), **EXACT)


def test_moments_of_parts_add_up(features) -> None:
    q, _ = features
    whole = novelty.moments(q)
    parts = novelty.moments(q[:, :7]) + novelty.moments(q[:, 7:])
    assert isinstance(parts, Moments)
    for a, b in zip(whole, parts, strict=True):
        assert_close(a, b, **EXACT)


def test_moments_are_kept_in_float64() -> None:
    assert all(part.dtype == torch.float64 for part in novelty.moments(torch.randn(4, 3)))


def test_leverage_is_that_of_a_regression(features) -> None:
    # the diagonal of the hat matrix Φ (ΦᵀΦ)⁻¹ Φᵀ, times the number of tokens
    q, _ = features
    found = novelty.leverage(q, novelty.precision(novelty.moments(q).second_moment, ridge=0.0))
    hat = q @ torch.linalg.pinv(q)
    assert_close(found, 29 * hat.diagonal(dim1=-2, dim2=-1), **EXACT)
    assert_close(found.mean(-1), torch.full((3,), 5.0, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("masked", [False, True])
def test_mean_leverage_is_the_mean_of_that_of_the_real_tokens(
    masked: bool, generator: torch.Generator
) -> None:
    tokens = torch.randn(3, 4, 6, 5, generator=generator, dtype=torch.float64)
    root = torch.randn(4, 5, 5, generator=generator, dtype=torch.float64)
    precision, lengths = root @ root.mT, [6, 2, 0]
    mask = torch.arange(6) < torch.tensor(lengths).unsqueeze(1) if masked else None

    found = novelty.mean_leverage(tokens, precision, mask)

    of_each = novelty.leverage(tokens, precision)
    if masked:
        assert_close(found[0], of_each[0].mean(dim=-1))
        assert_close(found[1], of_each[1, :, :2].mean(dim=-1))
        assert not found[2].any()
    else:
        assert_close(found, of_each.mean(dim=-1))


def test_leverage_does_not_depend_on_the_scale_of_the_features(features) -> None:
    q, _ = features
    for scale in (1e-6, 1.0, 1e6):
        moment = novelty.moments(q * scale).second_moment
        found = novelty.leverage(q * scale, novelty.precision(moment))
        expected = novelty.leverage(q, novelty.precision(novelty.moments(q).second_moment))
        assert_close(found, expected, **EXACT)


def test_features_that_never_vary_are_no_reason_to_fail() -> None:
    still = torch.zeros(4, 3, dtype=torch.float64)
    found = novelty.leverage(still, novelty.precision(novelty.moments(still).second_moment))
    assert_close(found, torch.zeros(4, dtype=torch.float64))


def test_variances_are_those_of_the_kernel_matrix(features) -> None:
    """The integral equations over the tokens themselves are those of K = Φ_q Φ_kᵀ / n."""
    q, k = features
    kernel = q @ k.mT
    # k(x, x′) over the sample, and its eigenvectors: K Kᵀ / n² = U Λ² Uᵀ
    gram = kernel @ kernel.mT / 29
    values, vectors = torch.linalg.eigh(gram / 29)
    values, vectors = values.flip(-1), vectors.flip(-1)
    c_q, c_k = novelty.moments(q).second_moment, novelty.moments(k).second_moment
    found = novelty.eigenfunctions(c_q, c_k)
    assert_close(found.singular_values.square(), values[:, :5], **EXACT)
    assert_close(novelty.prior_variance(q, c_k), gram.diagonal(dim1=-2, dim2=-1), **EXACT)
    for rank in (0, 2, 5):
        # e_i at the tokens is √n u_i, of unit second moment
        leading = 29 * (values[:, None, :rank] * vectors[..., :rank].square()).sum(-1)
        assert_close(novelty.explained_variance(q, found, rank), leading, **EXACT)
        rest = gram.diagonal(dim1=-2, dim2=-1) - leading
        assert_close(novelty.residual_variance(q, found, rank), rest, **EXACT)


def test_leverage_counts_every_eigenfunction_in_its_own_unit(features) -> None:
    q, k = features
    c_q, c_k = novelty.moments(q).second_moment, novelty.moments(k).second_moment
    found = novelty.eigenfunctions(c_q, c_k)
    unit = (q @ found.maps) / found.singular_values.unsqueeze(-2)
    expected = novelty.leverage(q, novelty.precision(c_q, ridge=0.0))
    assert_close(unit.square().sum(-1), expected, **EXACT)
