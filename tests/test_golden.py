"""The layer against numbers from the authors' published program (zero noise, no mask)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.attention import KEPAttention
from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.maths import svgp


def load(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


def layer_of(golden: dict[str, Tensor], merge: str) -> KEPAttention:
    _, num_tokens, dim = golden["x"].shape
    num_heads, num_landmarks, rank = golden["w_e"].shape
    shape = [f"model.dim={dim}", f"model.num_heads={num_heads}", f"model.kep.rank={rank}"]
    kind = [f"model.kep.merge={merge}", f"model.kep.num_landmarks={num_landmarks}"]
    config = load_config("digits", ["method=kep", *shape, *kind], variant="program").model
    layer = find_method("kep").attention(config, num_tokens if merge == "concat" else None)
    assert isinstance(layer, KEPAttention)
    layer.double()
    named = {
        "to_qk.weight": "qk_weight",
        "w_e": "w_e",
        "w_r": "w_r",
        "log_lambda": "log_lambda",
        "to_output.weight": "out_weight",
        "to_output.bias": "out_bias",
    }
    if merge == "concat":
        named |= {"token_weights.0": "concat_weight", "token_bias": "concat_bias"}
    state = layer.state_dict()
    state.update({ours: golden[theirs] for ours, theirs in named.items()})
    # the published u is Λ v
    state["v_mean"] = golden["u_mean"] / golden["log_lambda"].exp().unsqueeze(-1)
    layer.load_state_dict(state)
    return layer


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_layer_matches_the_published_numbers(golden: Path, merge: str) -> None:
    numbers = load(golden / f"kep_{merge}.npz")
    layer = layer_of(numbers, merge)
    exact = {"rtol": 0.0, "atol": 1e-10}

    pair = layer.scores(numbers["x"])
    assert_close(pair.e.mT, numbers["e_scores"], **exact)
    assert_close(pair.r.mT, numbers["r_scores"], **exact)
    assert_close(layer.posterior_mean(numbers["x"]), numbers["mean_output"], **exact)
    layer(numbers["x"])
    assert_close(layer.penalties().ksvd, numbers["ksvd_loss"], **exact)


def their_kl(numbers: dict[str, Tensor], log_std: Tensor, root: Tensor) -> Tensor:
    """The KL of the authors' program, of a factor S½ with axes [inducing, noise, value].

    It draws with these axes, and its trace weighs the first, but its own factors are triangular
    on the last two, whose diagonal `log_std` is.
    """
    heads, rank, _ = numbers["u_mean"].shape
    weight = (-2 * numbers["log_lambda"]).exp()
    trace = torch.einsum("hi,hijd->", weight, root.square())
    mean = torch.einsum("hi,hid->", weight, numbers["u_mean"].square())
    log_ratio = rank * numbers["log_lambda"].sum() - log_std.sum()
    return 0.5 * (trace + mean - heads * rank * rank) + log_ratio


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["golden", "one"])
@pytest.mark.parametrize("merge", ["add", "concat"])
def test_first_step_of_the_program_is_the_authors(golden: Path, merge: str, scale: float) -> None:
    numbers = load(golden / f"kep_{merge}.npz")
    numbers["log_lambda"] *= scale
    layer = layer_of(numbers, merge)
    heads, rank = numbers["log_lambda"].shape
    random = torch.Generator().manual_seed(0)
    normal = [torch.randn(heads, rank, rank, *more, generator=random) for more in [(), (rank,)]]
    log_std, below = (numbers_of.double() for numbers_of in normal)
    triangle = torch.diag_embed(log_std.exp()) + below.tril(-1)
    to_v = (-numbers["log_lambda"]).exp()[:, None, :, None]
    layer.set_factor(to_v * triangle)

    layer(numbers["x"])
    penalties = layer.penalties()

    # ours has [value, inducing, noise], and is triangular on the axes that are drawn with
    assert_close(penalties.kl, their_kl(numbers, log_std, triangle.permute(0, 2, 3, 1)))
    # its own factors, triangular on [noise, value], have the same KL where every λ is 1 alone
    is_same = torch.allclose(penalties.kl, their_kl(numbers, log_std, triangle))
    assert is_same == (scale == 0)
    if scale == 1:
        assert_close(penalties.ksvd, numbers["ksvd_loss"])


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_program_draws_around_the_authors_output(golden: Path, merge: str) -> None:
    numbers = load(golden / f"kep_{merge}.npz")
    layer = layer_of(numbers, merge)
    heads, rank = numbers["log_lambda"].shape
    layer.set_factor(1e-14 * torch.eye(rank).repeat(heads, rank, 1, 1))
    layer.dropout.p = 0.0
    exact = {"rtol": 0.0, "atol": 1e-10}

    assert layer.noise == "token"
    # every token has its own draw, in training and where samples are asked for
    assert_close(layer(numbers["x"]), numbers["mean_output"], **exact)
    assert_close(layer.eval()(numbers["x"], num_samples=1)[0], numbers["mean_output"], **exact)


def test_program_begins_with_the_authors_numbers() -> None:
    torch.manual_seed(0)
    layer = KEPAttention(
        192, 12, rank=10, projection="landmark", num_landmarks=64, start="program"
    ).double()

    # U(0, 1), by its mean, variance and bounds
    uniform = -0.5 * layer.log_lambda
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    to_u = layer.log_lambda.exp()
    u_mean = to_u.unsqueeze(-1) * layer.v_mean
    u_tril = to_u[:, None, :, None] * svgp.lower_cholesky(layer.v_tril_raw)
    log_std = u_tril.diagonal(dim1=-2, dim2=-1).log()
    rows, columns = torch.tril_indices(10, 10, offset=-1)
    for standard in (u_mean, log_std, u_tril[..., rows, columns], (uniform - 0.5) * 12**0.5):
        error = standard.numel() ** -0.5
        assert abs(standard.mean()) < 4 * error
        assert abs(standard.var() - 1) < 4 * 2**0.5 * error
    # heads against each other, each of norm 1
    flat = layer.w_e.flatten(1)
    assert_close(flat @ flat.mT, torch.eye(12).to(flat), rtol=0, atol=1e-5)
