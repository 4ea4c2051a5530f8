from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import predict
from kepsvgp.training.objective import loss

BATCH, HEAD, TOKEN, RANK, WIDTH = 2, 3, 7, 5, 11


def test_scores_and_penalty_match_the_authors_numbers(golden: Path) -> None:
    with np.load(golden / "kep_add.npz") as arrays:
        g = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    heads, landmarks, rank = g["w_e"].shape
    dim = g["x"].shape[-1]
    layer = PrimalAttention(
        dim, heads, rank=rank, num_landmarks=landmarks, projection="landmark",
        ksvd_loss="objective",
    ).double()  # fmt: skip
    state = {
        "to_qk.weight": g["qk_weight"],
        "w_e": g["w_e"],
        "w_r": g["w_r"],
        "log_lambda": g["log_lambda"],
    }
    layer.load_state_dict(layer.state_dict() | state)

    scores = layer.scores(g["x"])
    assert_close(scores.e.mT, g["e_scores"], rtol=1e-8, atol=1e-8)
    assert_close(scores.r.mT, g["r_scores"], rtol=1e-8, atol=1e-8)
    out = layer(g["x"])
    assert_close(layer.penalties().ksvd, g["ksvd_loss"].reshape(()), rtol=1e-8, atol=1e-8)

    # the output, head by head and token by token
    weight, bias = layer.to_output.weight, layer.to_output.bias
    for h in range(heads):
        pair = torch.cat([g["e_scores"][:, h], g["r_scores"][:, h]], dim=-1)
        columns = slice(h * dim // heads, (h + 1) * dim // heads)
        assert_close(out[..., columns], pair @ weight.mT + bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_layer_equals_kep_without_noise_when_its_map_is_that_of_the_mean(projection: Any) -> None:
    dim = HEAD * WIDTH
    kep = KEPAttention(dim, 1, rank=RANK, projection=projection).double().eval()
    primal = PrimalAttention(dim, 1, rank=RANK, projection=projection).double().eval()
    shared = {k: v for k, v in kep.state_dict().items() if k in primal.state_dict()}
    # (E + R) m W = [E, R] [m W; m W]
    readout = kep.v_mean[0] @ kep.to_output.weight.mT
    shared["to_output.weight"] = torch.cat([readout, readout]).mT
    primal.load_state_dict(shared)
    x = torch.randn(BATCH, TOKEN, dim, dtype=torch.float64)
    mask = torch.arange(TOKEN) < torch.tensor([[TOKEN], [TOKEN - 2]])

    expected = kep.posterior_mean(x, mask)
    assert_close(primal(x, mask)[mask], expected[mask])
    # and a sample axis that an earlier layer made is kept
    assert_close(primal(x.expand(3, -1, -1, -1), mask, num_samples=3)[2][mask], expected[mask])


def test_layer_is_deterministic_in_prediction_and_counts_in_the_objective() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = PrimalAttention(4, 2, rank=2)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, num_samples: int | None = None) -> torch.Tensor:
            return self.head(self.attention(x, num_samples=num_samples).mean(-2))

    model = Pooled().train()
    x = torch.randn(5, 3, 4)
    terms = loss(model(x), torch.zeros(5).long(), model, num_train=5, ksvd_weight=2.0)
    assert terms.kl == 0
    assert terms.ksvd > 0
    assert_close(terms.total, terms.nll + 2.0 * terms.ksvd)
    terms.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name

    prediction = predict(model, x, num_samples=4, keep_logits=True)
    assert prediction.logits is not None
    assert len(prediction.logits) == 1
    assert_close(prediction.epistemic, torch.zeros(5), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 5}, "divisible"),
        ({"rank": 0}, "rank must be positive"),
        ({"num_landmarks": 0}, "num_landmarks must be positive"),
    ],
)
def test_layer_refuses_what_makes_no_sense(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PrimalAttention(**({"dim": 6, "num_heads": 2} | settings))
