import copy
import gc
import subprocess
import sys
import weakref

import jaxtyping
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from kepsvgp.attention import (
    KEPAttention,
    PenalisedAttention,
    PrimalAttention,
    SGPAttention,
    SoftmaxAttention,
    fixed_draws,
)
from kepsvgp.attention.base import OfEachExample, use_draws
from kepsvgp.attention.statistics import statistics
from kepsvgp.errors import UserError
from kepsvgp.maths import ksvd, svgp

# layers alone, whose outputs are differentiated without an objective
pytestmark = pytest.mark.filterwarnings("ignore:layers with a posterior")

# every size distinct and prime where the layer allows: a swapped axis cannot pass
BATCH, TOKEN, DIM, HEAD, RANK = 2, 7, 15, 3, 4
SETTINGS = [
    {"projection": projection, "merge": merge, "branches": branches}
    for projection in ("landmark", "free", "dual")
    for merge, branches in [
        ("add", "er"), ("add", "ee"), ("add", "rr"), ("concat", "er"), ("concat_lowrank", "er"),
    ]
]  # fmt: skip


def build(
    seed: int = 0, *, dtype: torch.dtype = torch.float64, **overrides: object
) -> KEPAttention:
    """A layer whose every parameter is away from its initial value."""
    arguments = {"rank": RANK, "num_tokens": TOKEN, "num_landmarks": 5} | overrides
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = KEPAttention(DIM, HEAD, **arguments).to(dtype)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*(shape or (BATCH, TOKEN, DIM)), generator=generator, dtype=torch.float64)


def holes() -> Tensor:
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[0, 5:] = False
    mask[1, [0, 3]] = False
    return mask


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(s.values()))
def test_output_and_gradients_equal_the_loops(
    setting: dict[str, str], masked: bool, generator: torch.Generator
) -> None:
    layer = build(**setting)
    x = tokens(generator).requires_grad_()
    mask = holes() if masked else None
    u = layer.draw(BATCH, generator=generator).detach()

    with use_draws({layer: u}):
        # one fixed draw for each sequence: sequence b is sample b of a batch of its own
        ours = torch.stack(
            [layer(x[b : b + 1], None if mask is None else mask[b : b + 1], num_samples=BATCH)[b, 0]
             for b in range(BATCH)]
        )  # fmt: skip
    theirs = reference.output(layer, x, mask, u)

    assert_close(ours, theirs)
    weight = tokens(generator)
    # u is held fixed, so its own parameters have no gradient here
    inputs = [x, *(p for name, p in layer.named_parameters() if not name.startswith("u_"))]
    first = torch.autograd.grad((ours * weight).sum(), inputs, allow_unused=True)
    second = torch.autograd.grad((theirs * weight).sum(), inputs, allow_unused=True)
    for a, b in zip(first, second, strict=True):
        # a branch left out of the ablation has zeros in one and nothing in the other
        zero = torch.zeros(())
        a, b = (zero if a is None else a), (zero if b is None else b)
        assert_close(*torch.broadcast_tensors(a.double(), b.double()), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("projection", "loss"),
    [(p, loss) for p in ("landmark", "free", "dual") for loss in ("objective", "relative")]
    + [("dual", "residual")],
)
def test_ksvd_penalty_equals_the_loops(
    projection: str, loss: str, masked: bool, generator: torch.Generator
) -> None:
    layer, x = build(projection=projection, ksvd_loss=loss), tokens(generator)
    mask = holes() if masked else None
    layer(x, mask)
    ours = layer.penalties().ksvd
    if loss == "residual":
        theirs = reference.ksvd_residual(layer, x, mask)
    else:
        theirs = reference.ksvd_loss(layer, x, mask, relative=loss == "relative")
    assert_close(ours, theirs)
    parameters = [layer.to_qk.weight, layer.log_lambda]
    first, second = (torch.autograd.grad(value, parameters) for value in (ours, theirs))
    assert_close(first, second)


@pytest.mark.parametrize("kind", [KEPAttention, PrimalAttention, SGPAttention])
def test_layer_used_twice_in_a_pass_has_the_sum_of_its_penalties(
    kind: type[PenalisedAttention], generator: torch.Generator
) -> None:
    layer = kind(DIM, HEAD).double()
    each = []
    for x in (first := tokens(generator), second := tokens(generator)):
        layer(x)
        each.append(layer.penalties())
    out = layer(first) + layer(second)
    kl, ksvd, sequence_kl = layer.penalties()

    assert out.requires_grad
    assert_close(ksvd, each[0].ksvd + each[1].ksvd)
    # the KL of the parameters counts once, that of each sequence's process every time
    assert_close(kl, each[0].kl)
    if sequence_kl is not None:
        assert_close(sequence_kl, each[0].sequence_kl + each[1].sequence_kl)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_pass_whose_output_nobody_kept_is_forgotten(
    with_gradients: bool, generator: torch.Generator
) -> None:
    layer, x = build(), tokens(generator)
    with torch.set_grad_enabled(with_gradients):
        layer(x)
    assert layer(x).requires_grad
    found = layer.penalties().ksvd
    layer(x)
    assert_close(found, layer.penalties().ksvd)


def coefficients(layer: KEPAttention) -> list[Tensor]:
    return [layer.to_dual.weight] if layer.projection == "dual" else [layer.w_e, layer.w_r]


@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
@pytest.mark.parametrize(
    ("choice", "ratio"), [({}, 1.0), ({"ksvd_loss": "objective"}, 16.0)], ids=["default", "J²"]
)
def test_common_factor_of_the_coefficients_is_free_in_the_default_penalty(
    projection: str, choice: dict[str, str], ratio: float, generator: torch.Generator
) -> None:
    layer, x = build(projection=projection, **choice), tokens(generator)
    layer(x)
    before = layer.penalties().ksvd
    with torch.no_grad():
        for weight in coefficients(layer):
            weight.mul_(2)
    layer(x)
    assert_close(layer.penalties().ksvd, ratio * before)


def test_scale_of_lambda_is_in_the_ksvd_penalty_alone(generator: torch.Generator) -> None:
    layer, x = build(), tokens(generator)

    def run() -> tuple[Tensor, Tensor, Tensor]:
        out = layer(x, generator=seeded(3))
        return out, *layer.penalties()[:2]

    out, kl, ksvd_loss = run()
    with torch.no_grad():
        layer.log_lambda.add_(1.5)
    again, kl_again, other = run()
    assert torch.equal(out, again)
    assert torch.equal(kl, kl_again)
    assert not torch.isclose(ksvd_loss, other)


@pytest.mark.parametrize("noise", ["joint", "token"])
@pytest.mark.parametrize("merge", ["add", "concat"])
def test_evaluation_gives_the_mean_unless_draws_are_asked_for(
    noise: str, merge: str, generator: torch.Generator
) -> None:
    layer, x = build(noise=noise, merge=merge), tokens(generator)
    mean = layer.posterior_mean(x)
    assert not torch.allclose(layer(x), mean)
    layer.eval()
    assert torch.equal(layer(x), mean)
    assert not torch.allclose(layer(x, num_samples=1)[0], mean)
    assert not torch.allclose(layer(x, generator=generator), mean)
    with fixed_draws(layer, 1):
        assert not torch.allclose(layer(x), mean)


@pytest.mark.parametrize("noise", ["joint", "token"])
def test_values_of_each_example_reach_its_sequences(noise: str, generator: torch.Generator) -> None:
    layer, x = build(noise=noise).eval(), tokens(generator)
    v = tokens(generator, BATCH, HEAD, RANK, RANK)
    with use_draws({layer: OfEachExample(v)}):
        assert_close(layer(x), reference.output(layer, x, None, v))
        # two windows of each example follow each other
        windows = layer(x.repeat_interleave(2, dim=0))
    assert_close(windows, reference.output(layer, x, None, v).repeat_interleave(2, dim=0))


@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
def test_posterior_mean_is_the_output_at_the_mean_of_v(
    merge: str, generator: torch.Generator
) -> None:
    layer, x = build(merge=merge), tokens(generator)
    v = layer.v_mean.detach().expand(BATCH, -1, -1, -1)
    assert_close(layer.posterior_mean(x), reference.output(layer, x, None, v))


@pytest.mark.parametrize("noise", ["joint", "token"])
def test_samples_have_the_posterior_moments(noise: str, generator: torch.Generator) -> None:
    """Mean, and covariance across tokens, of 10⁴ draws against the analytic ones."""
    layer, x = build(noise=noise), tokens(generator, 1, TOKEN, DIM)
    num = 10_000
    with torch.no_grad():
        if noise == "joint":
            draws = layer(x, num_samples=num, generator=generator)[:, 0]
        else:
            draws = layer(x.expand(num, -1, -1), generator=generator)
        pair = layer.scores(x)
        q = svgp.posterior(
            (pair.e + pair.r).mT,
            layer.v_mean,
            svgp.lower_cholesky(layer.v_tril_raw),
        )
    # O = F Wᵀ + b: output c of a head has covariance Σ_d W_cd² A_d A_dᵀ across tokens
    covariance = torch.einsum(
        "h v i r, h v j r, c v -> h c i j", q.factor[0], q.factor[0], layer.to_output.weight**2
    ).detach()
    if noise == "token":
        covariance = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    by_head = draws.unflatten(-1, (HEAD, -1))  # (sample token head width)
    scale = covariance.diagonal(dim1=-2, dim2=-1)  # (head width token)

    error = (draws.mean(0) - layer.posterior_mean(x)[0]).unflatten(-1, (HEAD, -1)).detach()
    # 5 standard errors: about 1e-4 for a false alarm over all entries, and the seed is fixed
    assert (error.abs().permute(1, 2, 0) <= 5 * (scale / num).sqrt()).all()

    centred = by_head - by_head.mean(0)
    actual = torch.einsum("n i h c, n j h c -> h c i j", centred, centred) / num
    spread = (scale[..., :, None] * scale[..., None, :] + covariance.square()) / num
    assert ((actual - covariance).abs() <= 5 * spread.sqrt()).all()


def test_sequences_have_their_own_draws_and_samples_share_one(generator: torch.Generator) -> None:
    layer = build()
    x = tokens(generator, 1, TOKEN, DIM).expand(BATCH, -1, -1)
    alone = layer(x, generator=generator)
    assert (alone[0] - alone[1]).abs().max() > 1e-3
    shared = layer(x, num_samples=5, generator=generator)
    assert_close(shared[:, 0], shared[:, 1])
    assert (shared[0] - shared[1]).abs().max() > 1e-3


@pytest.mark.parametrize("noise", ["joint", "token"])
@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_padding_and_longer_neighbours_do_not_change_a_sequence(
    projection: str, noise: str, generator: torch.Generator
) -> None:
    layer = build(projection=projection, noise=noise)
    x = tokens(generator, 1, 5, DIM)
    alone = layer(x, num_samples=3, generator=seeded())

    for extra in (1, 13, 30):
        padded = torch.cat([x, 1e3 * tokens(generator, 1, extra, DIM)], dim=1)
        neighbour = tokens(generator, 1, 5 + extra, DIM)
        batch = torch.cat([neighbour, padded])
        mask = torch.ones(2, 5 + extra, dtype=torch.bool)
        mask[1, 5:] = False
        together = layer(batch, mask, num_samples=3, generator=seeded())
        assert_close(together[:, 1:, :5], alone, rtol=0.0, atol=1e-6)


def test_sample_axis_of_the_input_meets_that_of_the_draws(generator: torch.Generator) -> None:
    layer = build()
    x = tokens(generator, 3, BATCH, TOKEN, DIM)
    together = layer(x, num_samples=3, generator=seeded())
    u = layer.draw(3, generator=seeded())
    for sample in range(3):
        with use_draws({layer: u[sample : sample + 1]}):
            assert_close(together[sample], layer(x[sample]))


def test_fixed_draws_hold_in_their_block_only(generator: torch.Generator) -> None:
    layer, x = build(), tokens(generator)
    with fixed_draws(layer, 4, generator=seeded()):
        first, second = layer(x, num_samples=4), layer(x, num_samples=4)
        with pytest.raises(ValueError, match="4 fixed draws"):
            layer(x, num_samples=3)
    assert_close(first, second)
    assert (layer(x, num_samples=4) - first).abs().max() > 1e-3


@pytest.mark.parametrize("noise", ["joint", "token"])
@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_gradcheck(projection: str, merge: str, noise: str, generator: torch.Generator) -> None:
    layer = build(projection=projection, merge=merge, noise=noise)
    x, mask = tokens(generator).requires_grad_(), holes()
    names = [name for name, _ in layer.named_parameters()]

    def total(x: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        out = torch.func.functional_call(layer, values, (x, mask), {"generator": seeded()})
        return out.square().sum()

    parameters = [p.detach().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(total, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_every_parameter_gets_a_gradient(
    projection: str, merge: str, generator: torch.Generator
) -> None:
    layer = build(projection=projection, merge=merge, qk_bias=True)
    out = layer(tokens(generator))
    terms = layer.penalties()
    (out.square().sum() + terms.kl + terms.ksvd).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
@pytest.mark.parametrize("noise", ["joint", "token"])
def test_all_sizes_one(projection: str, merge: str, noise: str) -> None:
    layer = KEPAttention(
        1, 1, rank=1, merge=merge, num_tokens=1, num_landmarks=1, projection=projection, noise=noise
    )
    assert layer(torch.ones(1, 1, 1)).shape == (1, 1, 1)
    assert layer(torch.ones(1, 1, 1), num_samples=1).shape == (1, 1, 1, 1)
    assert layer.posterior_mean(torch.ones(1, 1, 1)).isfinite().all()


@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_fully_padded_row_is_finite_with_finite_gradients(
    projection: str, generator: torch.Generator
) -> None:
    layer, x = build(projection=projection), tokens(generator).requires_grad_()
    mask = torch.ones(BATCH, TOKEN, dtype=torch.bool)
    mask[1] = False
    out = layer(x, mask)
    terms = layer.penalties()
    (out.sum() + terms.ksvd).backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_rank_and_landmarks_may_exceed_the_tokens(generator: torch.Generator) -> None:
    layer = build(rank=11, num_landmarks=None)
    assert layer.num_landmarks == 110
    assert layer(tokens(generator)).isfinite().all()


@pytest.mark.usefixtures("plain_products")
def test_bfloat16_autocast_stays_close_and_keeps_penalties_in_float32(
    generator: torch.Generator,
) -> None:
    layer = build(dtype=torch.float32)
    x = tokens(generator).float()
    exact = layer(x, generator=seeded())
    terms = layer.penalties()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer(x, generator=seeded())
        rounded_terms = layer.penalties()
    # bfloat16 has 8 bits: about 1 % for a product of three roundings
    assert (rounded.float() - exact).norm() < 0.03 * exact.norm()
    assert rounded_terms.kl.dtype == rounded_terms.ksvd.dtype == torch.float32
    assert_close(rounded_terms.kl, terms.kl)


@pytest.mark.usefixtures("plain_products")
def test_half_precision_parameters_work(generator: torch.Generator) -> None:
    layer = build(dtype=torch.bfloat16)
    out = layer(tokens(generator).bfloat16())
    assert out.dtype == torch.bfloat16
    assert layer.penalties().kl.dtype == torch.float32


COMPILED = """
import copy, torch
from torch.testing import assert_close
from kepsvgp.attention import KEPAttention
from kepsvgp.attention.base import use_draws

for projection in ("landmark", "free", "dual"):
    torch.manual_seed(0)
    layer = KEPAttention(12, 3, rank=4, projection=projection)
    eager, x = copy.deepcopy(layer), torch.randn(2, 7, 12)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 5:] = False
    compiled = torch.compile(layer, fullgraph=True)
    u = layer.draw(3).detach()
    with use_draws({layer: u, eager: u}):
        first, second = compiled(x, mask, num_samples=3), eager(x, mask, num_samples=3)
    assert_close(first, second)
    terms = layer.penalties(), eager.penalties()
    assert_close(terms[0].ksvd, terms[1].ksvd)
    (first.square().sum() + terms[0].ksvd).backward()
    (second.square().sum() + terms[1].ksvd).backward()
    assert_close(layer.to_qk.weight.grad, eager.to_qk.weight.grad)
    # batches of other sizes, with draws of their own
    for size in (3, 5):
        assert compiled(torch.randn(size, 9, 12)).shape == (size, 9, 12)
print("equal")
"""


@pytest.mark.slow
def test_compiled_layer_equals_eager() -> None:
    """In a process of its own: run-time checks of annotations cannot be compiled."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.parametrize("merge", ["add", "concat"])
@pytest.mark.parametrize("projection", ["landmark", "free", "dual"])
def test_step_waits_for_no_value(projection: str, merge: str) -> None:
    """On `meta`, where tensors have no values, whatever reads one on the host fails."""
    layer = build(projection=projection, merge=merge).to("meta")
    x = torch.empty(BATCH, TOKEN, DIM, dtype=torch.float64, device="meta", requires_grad=True)
    for mask in (None, torch.empty(BATCH, TOKEN, dtype=torch.bool, device="meta")):
        out = layer(x, mask)
        terms = layer.penalties()
        (out.sum() + terms.kl + terms.ksvd).backward()
        assert layer.eval()(x, mask, num_samples=3).shape == (3, BATCH, TOKEN, DIM)
        layer.train()
    assert x.grad is not None


def test_checkpointing_keeps_gradients_and_forgets_the_recomputed_pass(
    generator: torch.Generator,
) -> None:
    layer, x = build(), tokens(generator)
    twin = copy.deepcopy(layer)

    def step(module: KEPAttention, recompute: bool) -> Tensor:
        def forward(x: Tensor) -> Tensor:
            return module(x, generator=seeded())

        out = checkpoint(forward, x, use_reentrant=False) if recompute else forward(x)
        terms = module.penalties()
        return out.square().sum() + terms.kl + terms.ksvd

    step(layer, True).backward()
    step(twin, False).backward()
    for (name, a), b in zip(layer.named_parameters(), twin.parameters(), strict=True):
        assert a.grad is not None, name
        assert_close(a.grad, b.grad)
    with pytest.raises(ValueError, match="forward pass in training mode"):
        layer.penalties()


def test_no_graph_outlives_its_step(generator: torch.Generator) -> None:
    layer, x = build(), tokens(generator)
    kept = []
    layer.register_forward_pre_hook(lambda _, inputs: kept.append(weakref.ref(inputs[0])))
    # the input of the pass is part of its graph, so it lives as long as the graph does
    out = layer(x.clone().requires_grad_())
    terms = layer.penalties()
    (out.sum() + terms.ksvd).backward(retain_graph=True)
    assert kept[0]() is not None
    del out, terms
    gc.collect()
    assert kept[0]() is None


@pytest.mark.parametrize("kind", [KEPAttention, PrimalAttention, SGPAttention])
def test_only_a_training_pass_leaves_penalties_and_only_once(
    kind: type[PenalisedAttention],
) -> None:
    layer, x = kind(DIM, HEAD), torch.randn(BATCH, TOKEN, DIM)
    layer(x)
    layer.penalties()
    layer.eval()(x)
    with pytest.raises(UserError, match="forward pass in training mode"):
        layer.penalties()


def test_dropout_acts_in_training_only(generator: torch.Generator) -> None:
    layer, x = build(dropout=0.5), tokens(generator)
    u = layer.draw(1, generator=generator).detach()
    with use_draws({layer: u}):
        assert (layer(x) == 0).float().mean() > 0.2
        assert (layer.eval()(x) == 0).float().mean() < 0.01


@pytest.mark.parametrize("kind", [PrimalAttention, SGPAttention])
def test_other_layers_refuse_widths_and_masks_that_do_not_fit(
    kind: type[PenalisedAttention], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for layer in (kind, SoftmaxAttention):
        with pytest.raises(UserError, match="divisible by num_heads=3; got 16"):
            layer(16, 3)
    for mask in (torch.ones(2, 3), torch.ones(1, 3, dtype=torch.bool)):
        with pytest.raises(UserError, match="mask must be bool of shape"):
            kind(6, 2)(torch.randn(2, 3, 6), mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 10, "num_heads": 3}, "divisible by num_heads=3; got 10"),
        ({"rank": 0}, "rank must be positive; got 0"),
        ({"num_heads": 0}, "num_heads must be positive; got 0"),
        ({"merge": "concat"}, "must be given num_tokens; got None"),
        ({"merge": "sum"}, "merge must be one of 'add', 'concat', 'concat_lowrank'; got a str"),
        ({"projection": "random"}, "projection must be one of"),
        ({"noise": "none"}, "noise must be one of"),
        ({"branches": "re"}, "branches must be one of"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\); got 1.0"),
        (
            {"ksvd_loss": "residual", "projection": "landmark"},
            "must go with projection='dual'; got 'landmark'",
        ),
        ({"posterior_scale": -1.0}, "posterior_scale must be positive"),
    ],
)
def test_bad_arguments_say_what_was_expected(
    arguments: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # annotations are not checked outside of the tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match=message):
        KEPAttention(**({"dim": 12, "num_heads": 3} | arguments))


@pytest.mark.parametrize(
    ("x", "mask", "num_samples", "message"),
    [
        (torch.ones(2, 7, 14), None, None, r"x must have shape .*; got \(2, 7, 14\)"),
        (torch.ones(7, 15), None, None, r"got \(7, 15\)"),
        (torch.ones(2, 6, 15), None, None, "must have 7 tokens.*got 6"),
        (torch.ones(4, 2, 7, 15), None, None, "num_samples must be the size of x's sample axis, 4"),
        (torch.ones(2, 7, 15), None, 0, "num_samples must be at least 1; got 0"),
        (torch.ones(2, 7, 15), torch.ones(2, 6).bool(), None, r"shape \(2, 7\).*\(2, 6\)"),
        (torch.ones(2, 7, 15), torch.ones(2, 7), None, "mask must be bool.*float32"),
        (torch.full((2, 7, 15), torch.nan), None, None, "x must be finite"),
    ],
)
def test_bad_inputs_say_what_was_expected(
    x: Tensor, mask: Tensor | None, num_samples: int | None, message: str
) -> None:
    layer = build(merge="concat", check_finite=True, dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        layer._check_inputs(x, mask, num_samples)


sizes = st.integers(1, 6)


@settings(max_examples=30)
@given(batch=sizes, token=sizes, head=st.integers(1, 3), rank=sizes, seed=st.integers(0, 99))
def test_dual_is_equivariant_to_token_permutations(
    batch: int, token: int, head: int, rank: int, seed: int
) -> None:
    generator = seeded(seed)
    layer = KEPAttention(4 * head, head, rank=rank, projection="dual").double()
    x = tokens(generator, batch, token, 4 * head)
    order = torch.randperm(token, generator=generator)
    with fixed_draws(layer, 1, generator=generator):
        assert_close(layer(x[:, order]), layer(x)[:, order], rtol=1e-6, atol=1e-9)


def test_ksvd_objective_is_a_mean_over_tokens(generator: torch.Generator) -> None:
    """So that it is zero wherever that of each sequence is, whatever their lengths."""
    layer, x = build(projection="dual"), tokens(generator)
    mask = torch.arange(x.shape[1]) < torch.arange(1, 1 + len(x))[:, None]

    def objective(rows: slice) -> Tensor:
        total = statistics(layer.scores(x[rows], mask[rows]), mask[rows])
        mean = total.trace / total.num_tokens
        return ksvd.objective(total.energy, total.num_tokens, layer.log_lambda, mean)

    weights = mask.sum(dim=1) / mask.sum()
    each = torch.stack([objective(slice(i, i + 1)) for i in range(len(x))])
    assert_close(objective(slice(None)), (weights * each).sum())
