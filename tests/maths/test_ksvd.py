import pytest
import reference
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.maths import ksvd

# every size distinct and prime: a swapped axis cannot pass
BATCH, HEAD, TOKEN, FEATURE, RANK = 2, 3, 11, 7, 5


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_cosine_features_have_unit_norm(generator: torch.Generator) -> None:
    phi = ksvd.features(normal(generator, BATCH, TOKEN, FEATURE))
    assert_close(phi.norm(dim=-1), torch.ones(BATCH, TOKEN, dtype=torch.float64))


def test_inverse_norm_of_zero_has_a_zero_gradient() -> None:
    t = torch.zeros(FEATURE, requires_grad=True)
    (ksvd.features(t).sum()).backward()
    assert t.grad is not None
    assert t.grad.isfinite().all()


def test_project_equals_features_times_directions(generator: torch.Generator) -> None:
    t = normal(generator, BATCH, HEAD, TOKEN, FEATURE)
    directions = normal(generator, BATCH, HEAD, FEATURE, RANK)
    assert_close(ksvd.project(t, directions), (ksvd.features(t) @ directions).mT)


def test_landmark_positions_are_the_rounded_down_even_spacing() -> None:
    positions = ksvd.landmark_positions(torch.tensor([7, 3, 1, 0]), 4)
    assert positions.tolist() == [[0, 2, 4, 6], [0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert ksvd.landmark_positions(torch.tensor([7]), 1).tolist() == [[0]]


def test_landmarks_are_spaced_over_real_tokens_only(generator: torch.Generator) -> None:
    x = normal(generator, 1, 6, 2)
    left_padded = torch.tensor([[False, False, True, True, False, True]])
    picked = ksvd.landmarks(x, left_padded, 3)
    assert_close(picked[0], x[0, [2, 3, 5]])


def test_landmarks_of_an_empty_sequence_are_zero(generator: torch.Generator) -> None:
    x = normal(generator, 2, 4, 3)
    mask = torch.tensor([[True] * 4, [False] * 4])
    assert (ksvd.landmarks(x, mask, 5)[1] == 0).all()


def test_exact_svd_solves_the_shifted_eigenvalue_problem(generator: torch.Generator) -> None:
    q, k = normal(generator, TOKEN, FEATURE), normal(generator, TOKEN, FEATURE)
    kernel = ksvd.attention_kernel(q, k)
    left, values, right = ksvd.exact_svd(kernel, RANK)

    assert_close(kernel @ right, left * values)
    assert_close(kernel.mT @ left, right * values)


def test_symmetric_eigenproblems_carry_the_svd(generator: torch.Generator) -> None:
    kernel = ksvd.attention_kernel(
        normal(generator, TOKEN, FEATURE), normal(generator, TOKEN, FEATURE)
    )
    svd = ksvd.exact_svd(kernel, RANK)
    left, right, squared_values = reference.symmetric_eigenproblems(kernel, RANK)

    assert_close(squared_values, svd.values.square())
    # eigenvectors are unique up to sign
    for ours, theirs in ((svd.left, left), (svd.right, right)):
        assert_close((ours * theirs).sum(0).abs(), torch.ones(RANK, dtype=torch.float64))


def exact_solution(generator: torch.Generator) -> tuple[Tensor, ...]:
    """Scores, directions and singular values of the exact KSVD of one random kernel."""
    q, k = normal(generator, TOKEN, FEATURE), normal(generator, TOKEN, FEATURE)
    phi_q, phi_k = ksvd.features(q), ksvd.features(k)
    left, values, right = ksvd.exact_svd(phi_q @ phi_k.mT, RANK)
    # KKT: W_e = Φ_kᵀ H_r    W_r = Φ_qᵀ H_e
    w_e, w_r = phi_k.mT @ right, phi_q.mT @ left
    return phi_q @ w_e, phi_k @ w_r, w_e, w_r, values, left, right


def test_scores_at_the_exact_solution_are_scaled_singular_vectors(
    generator: torch.Generator,
) -> None:
    e, r, _, _, values, left, right = exact_solution(generator)
    assert_close(e, left * values)
    assert_close(r, right * values)


def test_objective_is_zero_at_the_exact_solution(generator: torch.Generator) -> None:
    e, r, w_e, w_r, values, _, _ = exact_solution(generator)
    energy = ksvd.sum_of_squares(e.mT[None, None]) + ksvd.sum_of_squares(r.mT[None, None])
    # the paper sums over tokens where the penalty takes means: one token undoes that
    one = torch.ones((), dtype=torch.float64)
    j = ksvd.objective(energy, one, values.log()[None], ksvd.mean_trace(w_e[None], w_r[None]))
    assert_close(j, torch.zeros_like(j), atol=1e-10, rtol=0.0)


def test_residual_is_zero_at_singular_vectors_and_not_elsewhere(
    generator: torch.Generator,
) -> None:
    e, _, _, _, values, left, _ = exact_solution(generator)
    log_values = values.log()[None]
    at_solution = ksvd.residual_sums(e.mT[None, None], left.mT[None, None], log_values)
    elsewhere = ksvd.residual_sums(e.mT[None, None], left.flip(0).mT[None, None], log_values)
    assert_close(at_solution, torch.zeros_like(at_solution))
    assert (elsewhere > 1e-3).all()


@pytest.mark.parametrize(("rows", "columns"), [(11, 5), (5, 11)])
def test_orthonormal_columns_hold_for_each_head(rows: int, columns: int) -> None:
    weight = ksvd.orthonormal_columns(HEAD, rows, columns)
    gram = weight.mT @ weight if rows >= columns else weight @ weight.mT
    assert_close(gram, torch.eye(min(rows, columns)).expand_as(gram), atol=1e-5, rtol=0.0)
