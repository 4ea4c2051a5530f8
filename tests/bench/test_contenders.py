import pytest
import torch
from torch.testing import assert_close

from benchmarks.contenders import NaiveAttention, PaperKEPAttention
from benchmarks.layer import step
from kepsvgp.attention import KEPAttention, SoftmaxAttention

DIM, HEADS, TOKENS = 12, 3, 7


def test_naive_attention_equals_the_fused_one() -> None:
    fused, naive = SoftmaxAttention(DIM, HEADS), NaiveAttention(DIM, HEADS)
    naive.load_state_dict(fused.state_dict())
    x = torch.randn(2, TOKENS, DIM)
    assert_close(naive(x), fused(x))
    mask = torch.arange(TOKENS) < torch.tensor([[TOKENS], [3]])
    assert_close(naive(x, mask), fused(x, mask))


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_paper_s_layer_equals_ours_without_noise(merge: str) -> None:
    sizes = {"rank": 4, "merge": merge, "num_tokens": TOKENS}
    sizes |= {"projection": "landmark", "ksvd_loss": "objective"}
    ours = KEPAttention(DIM, HEADS, **sizes).double()
    with torch.no_grad():
        # a standard deviation of e⁻⁴⁰
        ours.v_tril_raw.diagonal(dim1=-2, dim2=-1).fill_(-40.0)
    paper = PaperKEPAttention(DIM, HEADS, **sizes).double()
    paper.load_state_dict(ours.state_dict())
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    assert_close(paper(x), ours(x))
    assert_close(paper.penalties().ksvd, ours.penalties().ksvd)


def test_step_leaves_gradients_of_output_and_penalties() -> None:
    layer = KEPAttention(DIM, HEADS, rank=4)
    x = torch.randn(2, TOKENS, DIM, requires_grad=True)
    step(layer, x, torch.zeros_like(x))()
    # the output's gradient is zero: what is there comes from the penalties
    assert layer.to_dual.weight.grad is not None
    assert layer.v_mean.grad is not None
    assert layer.v_mean.grad.abs().sum() > 0
