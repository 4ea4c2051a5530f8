"""The method once more, slowly: loops over sequences, heads and tokens, straight from the paper.

Nothing here is shared with the package but the parameters of a layer. The exact posteriors at the
end form N × N matrices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kepsvgp.attention import KEPAttention


def real_positions(mask_row: Tensor | None, num_tokens: int) -> list[int]:
    if mask_row is None:
        return list(range(num_tokens))
    return [i for i in range(num_tokens) if bool(mask_row[i])]


def landmark_tokens(x_row: Tensor, positions: list[int], num_landmarks: int) -> Tensor:
    if not positions:
        return x_row.new_zeros(num_landmarks, x_row.shape[-1])
    last = len(positions) - 1
    chosen = [positions[m * last // max(num_landmarks - 1, 1)] for m in range(num_landmarks)]
    return torch.stack([x_row[i] for i in chosen])


def head_scores(
    layer: KEPAttention, x_row: Tensor, mask_row: Tensor | None, head: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E and R of one sequence and head (token rank), and the directions W_e, W_r."""
    num_tokens, dim = x_row.shape
    width = dim // layer.num_heads
    rows = slice(head * width, (head + 1) * width)
    qk = layer.to_qk(x_row)
    q, k = qk[:, :dim][:, rows], qk[:, dim:][:, rows]
    positions = real_positions(mask_row, num_tokens)
    phi_q = torch.stack([t / t.norm() for t in q])
    phi_k = torch.stack([t / t.norm() for t in k])
    if layer.projection == "landmark":
        chosen = landmark_tokens(x_row, positions, layer.num_landmarks)[:, rows]
        w_e, w_r = chosen.T @ layer.w_e[head], chosen.T @ layer.w_r[head]
    elif layer.projection == "free":
        w_e, w_r = layer.w_e[head], layer.w_r[head]
    else:
        dual = layer.to_dual(x_row)
        start = head * layer.rank
        h_e = dual[:, start : start + layer.rank]
        start += layer.num_heads * layer.rank
        h_r = dual[:, start : start + layer.rank]
        kernel = phi_q[positions] @ phi_k[positions].T / max(len(positions), 1)
        w_e = phi_k[positions].T @ h_r[positions] / max(len(positions), 1)
        w_r = phi_q[positions].T @ h_e[positions] / max(len(positions), 1)
        # E = K H_r and R = Kᵀ H_e: the dual representation (eq. 10)
        torch.testing.assert_close(phi_q[positions] @ w_e, kernel @ h_r[positions])
        torch.testing.assert_close(phi_k[positions] @ w_r, kernel.T @ h_e[positions])
    e, r = torch.zeros(num_tokens, layer.rank), torch.zeros(num_tokens, layer.rank)
    e, r = e.to(x_row), r.to(x_row)
    for i in positions:
        e[i] = w_e.T @ phi_q[i]
        r[i] = w_r.T @ phi_k[i]
    return e, r, w_e, w_r


def output(layer: KEPAttention, x: Tensor, mask: Tensor | None, v: Tensor) -> Tensor:
    """The layer's output for given draws v (batch head rank value), by the paper's u = Λ v."""
    batch, num_tokens, dim = x.shape
    width = dim // layer.num_heads
    out = x.new_zeros(batch, num_tokens, dim)
    for b in range(batch):
        row_mask = None if mask is None else mask[b]
        for h in range(layer.num_heads):
            e, r, _, _ = head_scores(layer, x[b], row_mask, h)
            first, second = {"er": (e, r), "ee": (e, e), "rr": (r, r)}[layer.branches]
            inverse = torch.diag(torch.exp(-layer.log_lambda[h]))
            u = torch.diag(torch.exp(layer.log_lambda[h])) @ v[b, h]
            f_first, f_second = first @ inverse @ u, second @ inverse @ u
            weight, bias = layer.to_output.weight, layer.to_output.bias
            if layer.merge == "add":
                values = (f_first + f_second) @ weight.T + bias
            else:
                stacked = torch.cat([f_first, f_second]) @ weight.T + bias
                over_tokens = layer.token_weights[0]
                if layer.merge == "concat_lowrank":
                    over_tokens = layer.token_weights[1] @ layer.token_weights[0]
                values = over_tokens @ stacked + layer.token_bias[:, None]
            out[b, :, h * width : (h + 1) * width] = values
    return out


def ksvd_loss(
    layer: KEPAttention, x: Tensor, mask: Tensor | None = None, *, relative: bool = False
) -> Tensor:
    """J², or J̃², token by token."""
    energy, count, traces = x.new_zeros(()), 0, []
    for b in range(len(x)):
        row_mask = None if mask is None else mask[b]
        positions = real_positions(row_mask, x.shape[1])
        for h in range(layer.num_heads):
            e, r, w_e, w_r = head_scores(layer, x[b], row_mask, h)
            lam = torch.exp(layer.log_lambda[h])
            for i in positions:
                energy = energy + 0.5 * (e[i] ** 2 / lam).sum() + 0.5 * (r[i] ** 2 / lam).sum()
                count += 1
            if layer.projection != "dual":
                w_e, w_r = layer.w_e[h], layer.w_r[h]
            traces += len(positions) * [torch.trace(w_e.T @ w_r)]
    energy, trace = energy / max(count, 1), torch.stack(traces).mean()
    return ((energy - trace) / energy if relative else energy - trace) ** 2


def ksvd_residual(layer: KEPAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Squared distance from K H_r = H_e Λ and its adjoint, relative to the energy."""
    residual = x.new_zeros(layer.num_heads, layer.rank)
    energy = x.new_zeros(layer.num_heads, layer.rank)
    for b in range(len(x)):
        row_mask = None if mask is None else mask[b]
        real = real_positions(row_mask, x.shape[1])
        dual = layer.to_dual(x[b]).unflatten(-1, (2, layer.num_heads, layer.rank))[real]
        for h in range(layer.num_heads):
            e, r = (scores[real] for scores in head_scores(layer, x[b], row_mask, h)[:2])
            lam = torch.exp(layer.log_lambda[h])
            residual[h] += ((e - dual[:, 0, h] * lam) ** 2 + (r - dual[:, 1, h] * lam) ** 2).sum(0)
            energy[h] += (e**2 + r**2).sum(0)
    return (residual / energy).mean()


def symmetric_eigenproblems(kernel: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """H_e, H_r and Λ² of (K Kᵀ) H_e = H_e Λ² and (Kᵀ K) H_r = H_r Λ² (eq. 15), each by itself."""
    values, left = torch.linalg.eigh(kernel @ kernel.mT)
    _, right = torch.linalg.eigh(kernel.mT @ kernel)
    # eigh sorts upwards
    return left.flip(-1)[:, :rank], right.flip(-1)[:, :rank], values.flip(-1)[:rank]


class Gaussian(NamedTuple):
    """A Gaussian over function values at the tokens, with its full covariance."""

    mean: Tensor
    covariance: Tensor


def gp_posterior(
    k_test_test: Tensor,
    k_test_train: Tensor,
    k_train_train: Tensor,
    y: Tensor,
    noise_variance: float,
) -> Gaussian:
    """Exact GP posterior at test inputs (eq. 2)."""
    # K_*X (K_XX + σ² I)⁻¹
    noisy = k_train_train + noise_variance * torch.eye(len(y), dtype=y.dtype, device=y.device)
    gain = torch.linalg.solve(noisy, k_test_train.mT).mT
    return Gaussian(gain @ y, k_test_test - gain @ k_test_train.mT)


def svgp_posterior(
    k_xx: Tensor,
    k_xz: Tensor,
    k_zz: Tensor,
    u_mean: Tensor,
    u_cov: Tensor,
) -> Gaussian:
    """Regular SVGP posterior (eq. 3), with the s × s matrix inverted in full."""
    # K_XZ K_ZZ⁻¹
    gain = torch.linalg.solve(k_zz, k_xz.mT).mT
    mean = (gain @ u_mean.unsqueeze(-1)).squeeze(-1)
    # K_XX − K_XZ K_ZZ⁻¹ (K_ZZ − S) K_ZZ⁻¹ K_ZX
    return Gaussian(mean, k_xx - gain @ (k_zz - u_cov) @ gain.mT)


def kernel_eigen_posterior(
    kernel: Tensor,
    vectors: Tensor,
    eigenvalues: Tensor,
    u_mean: Tensor,
    u_cov: Tensor,
    *,
    residual: bool = True,
) -> Gaussian:
    """SVGP posterior with kernel-eigen features of a symmetric kernel (eq. 7).

    With `residual=False` the part of the kernel beyond the kept eigenvalues is left out of the
    covariance, which is the approximation of Remark 3.1 and of the layer.
    """
    # H m
    mean = vectors @ u_mean
    # H S Hᵀ
    covariance = vectors @ u_cov @ vectors.mT
    if residual:
        # K − H Λ Hᵀ
        covariance = covariance + kernel - (vectors * eigenvalues) @ vectors.mT
    return Gaussian(mean, covariance)
