"""The layer against numbers from the authors' published program (zero noise, no mask)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kepsvgp.attention import KEPAttention


def load(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


def layer_of(golden: dict[str, Tensor], merge: str) -> KEPAttention:
    _, num_tokens, dim = golden["x"].shape
    num_heads, num_landmarks, rank = golden["w_e"].shape
    layer = KEPAttention(
        dim,
        num_heads,
        rank=rank,
        merge=merge,
        num_tokens=num_tokens,
        projection="landmark",
        num_landmarks=num_landmarks,
    ).double()
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
