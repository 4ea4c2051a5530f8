"""Is this layer healthy? What a trained model's attention layers have learnt, in numbers.

For every layer the spectrum of its kernel; for KEP layers also how much of it the rank
explains, how near the scores are to the exact singular vectors, and what became of the
posterior.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.base import fixed_draws
from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.inference.mode import evaluating
from kepsvgp.inference.prediction import call
from kepsvgp.maths import svgp
from kepsvgp.paper.findings import EXAMPLES, findings
from kepsvgp.paper.kernels import (
    KINDS,
    Agreement,
    agreement,
    factored_svd,
    layer_features,
    layer_svd,
    normalised_spectrum,
    random_scores,
)
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection, LayerReport, Posterior, Shares, Sides
from kepsvgp.runs.weights import Checkpoint


def inspect_run(
    run: RunFolder,
    benchmark: Benchmark,
    *,
    checkpoint: Checkpoint | None = None,
    split: Literal["train", "val", "test"] = "test",
    examples: int = EXAMPLES,
) -> Inspection:
    """Looks at the attention layers of a run and writes `inspect.json` into its folder."""
    chosen: Examples = getattr(benchmark, split)
    some = chosen.subset(torch.arange(min(examples, len(chosen))))
    model = run.model(checkpoint)
    inspection = inspect_model(model, batches(some, 16), split=split, seed=run.config().seed)
    about = {"checkpoint": checkpoint or run.config().train.select}
    inspection = inspection.model_copy(update=about)
    run.write_inspection(inspection)
    return inspection


class Seen(NamedTuple):
    """What one layer was given for one batch."""

    x: Tensor
    mask: Tensor | None


@torch.no_grad()
def inspect_model(
    model: nn.Module, batches: Iterable[Any], *, split: str, seed: int = 0
) -> Inspection:
    """Looks at every attention layer of ours while the model sees some batches.

    Stochastic layers have one draw, that of `seed`, for all batches.
    """
    with evaluating(model) as model:
        layers = {name: module for name, module in model.named_modules() if type(module) in KINDS}
        parts: dict[str, list[_Part]] = {name: [] for name in layers}
        count = 0
        for inputs, labels, _ in batches:
            count += len(labels)
            generator = torch.Generator().manual_seed(seed)
            with _watching(layers) as seen, fixed_draws(model, 1, generator=generator):
                call(model, inputs)
            for name, layer in layers.items():
                parts[name].append(_look(layer, *seen[name]))
    reports = [_report(name, layer, parts[name]) for name, layer in layers.items()]
    return Inspection(examples=count, split=split, layers=reports)


@contextmanager
def _watching(layers: dict[str, nn.Module]) -> Iterator[dict[str, Seen]]:
    """Within the block, remembers what the layers are given."""
    seen: dict[str, Seen] = {}

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            x, *rest = args
            seen[name] = Seen(x.flatten(end_dim=-3), rest[0] if rest else kwargs.get("mask"))

        return hook

    handles = [
        layer.register_forward_pre_hook(watch(name), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class _Side(NamedTuple):
    """Learnt scores of one side against exact singular vectors, and random ones beside them."""

    learnt: Agreement
    chance: Agreement


class _Part(NamedTuple):
    """What one batch says about a layer; means are weighted by its number of examples."""

    weight: int
    spectrum: Float[Tensor, " values"]
    left: _Side | None = None
    right: _Side | None = None
    variance: Float[Tensor, " head"] | None = None
    energy: Float[Tensor, " head"] | None = None


def _look(layer: nn.Module, x: Tensor, mask: Tensor | None) -> _Part:
    if not isinstance(layer, KEPAttention | PrimalAttention):
        return _Part(len(x), normalised_spectrum(layer_svd(layer, x, mask).values))
    features = layer_features(layer, x, mask)
    svd = factored_svd(*features)
    # as many exact vectors as there are pairs; short sequences have fewer
    rank = min(layer.rank, svd.values.shape[-1])
    pair = layer.scores(x, mask)
    left, right = (
        _Side(
            agreement(_top(scores, rank), vectors[..., :rank]),
            agreement(random_scores(phi, rank), vectors[..., :rank]),
        )
        for scores, phi, vectors in (
            (pair.e, features.q, svd.left),
            (pair.r, features.k, svd.right),
        )
    )
    spectrum = normalised_spectrum(svd.values)
    if isinstance(layer, PrimalAttention):
        return _Part(len(x), spectrum, left, right)
    return _Part(len(x), spectrum, left, right, *_moments(layer, pair.e, pair.r))


def _top(scores: Float[Tensor, "*batch rank token"], rank: int) -> Tensor:
    """The scores of the strongest pairs of each head."""
    order = scores.square().sum(dim=-1).argsort(dim=-1, descending=True)[..., :rank]
    return scores.gather(-2, order.unsqueeze(-1).expand(*order.shape, scores.shape[-1]))


def _moments(layer: KEPAttention, e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Sums by head of the variances and squared means of both branches at the tokens."""
    v_mean = layer.v_mean.double()
    v_tril = svgp.lower_cholesky(layer.v_tril_raw.double())
    variance = energy = torch.zeros(layer.num_heads, dtype=torch.float64)
    for scores in (e, r):
        found = svgp.posterior(scores.mT.double(), v_mean, v_tril)
        variance = variance + found.factor.square().sum(dim=(0, 2, 3, 4))
        energy = energy + found.mean.square().sum(dim=(0, 2, 3))
    return variance, energy


def _report(name: str, layer: nn.Module, parts: list[_Part]) -> LayerReport:
    weights = [part.weight for part in parts]
    spectrum = _mean([part.spectrum for part in parts], weights)
    kind = KINDS[type(layer)]
    heads = int(layer.num_heads)  # pyright: ignore[reportArgumentType]
    report = LayerReport(name=name, kind=kind, heads=heads, singular_values=spectrum.tolist())
    if not isinstance(layer, KEPAttention | PrimalAttention):
        return report
    left, right = ([getattr(part, side) for part in parts] for side in ("left", "right"))

    def vectors(name: str) -> Sides:
        sides = [_mean([getattr(s.learnt, name) for s in side], weights) for side in (left, right)]
        return Sides(left=sides[0].tolist(), right=sides[1].tolist())

    def overlap(which: str) -> Shares:
        sides = [
            _mean([getattr(s, which).overlap.unsqueeze(0) for s in side], weights)
            for side in (left, right)
        ]
        return Shares(left=float(sides[0]), right=float(sides[1]))

    report = report.model_copy(
        update={
            "rank": layer.rank,
            "explained": min(1.0, float(spectrum[: layer.rank].sum())),
            "alignment": vectors("alignment"),
            "principal": vectors("principal"),
            "overlap": overlap("learnt"),
            "chance": overlap("chance"),
            "posterior": _posterior(layer, parts) if isinstance(layer, KEPAttention) else None,
        }
    )
    return report.model_copy(update={"findings": findings(report)})


def _posterior(layer: KEPAttention, parts: list[_Part]) -> Posterior:
    v_mean = layer.v_mean.double()
    v_tril = svgp.lower_cholesky(layer.v_tril_raw.double())
    heads = range(layer.num_heads)
    kl = [float(svgp.inducing_kl(v_mean[h, None], v_tril[h, None])) for h in heads]
    # diag S_d = row sums of L_d²
    variances = v_tril.square().sum(dim=-1)
    variance = torch.stack([p.variance for p in parts if p.variance is not None]).sum(dim=0)
    energy = torch.stack([p.energy for p in parts if p.energy is not None]).sum(dim=0)
    tiny = torch.finfo(energy.dtype).tiny
    return Posterior(
        kl=kl,
        scale=variances.mean(dim=(1, 2)).sqrt().tolist(),
        signal=v_mean.square().mean(dim=(1, 2)).sqrt().tolist(),
        # √(var / (var + mean²))
        noise=(variance / (variance + energy).clamp_min(tiny)).sqrt().tolist(),
    )


def _mean(values: list[Tensor], weights: list[int]) -> Tensor:
    """Weighted mean of vectors; shorter ones count as zero where they have ended."""
    length = max(len(value) for value in values)
    padded = [nn.functional.pad(value, (0, length - len(value))) for value in values]
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return shares @ torch.stack(padded).double()
