"""Is method A better than B on these examples? Paired bootstrap intervals.

A resample draws N of the N examples with replacement, the same ones for both methods, and
gives a difference of the metric; the interval holds the middle share of them. A resample
is a vector of counts, so the examples are sorted once for each prediction and not once for each
resample, and the metrics of many resamples are computed at a time.

Predictions with a leading axis of runs, such as seeds, count with their mean. What other runs
could change is then part of the interval: with the differences d of the S pairs of runs, each
resample is moved by a draw of sd(d) / √S · t, Student's t of S − 1 degrees of freedom. (Five runs
drawn from themselves with replacement give intervals that are too narrow.) Of a single run the
interval tells what another test set could change.

The ECE of few examples is too large, most so for a calibrated model, and that of a resample
still more. Its interval is one for what test sets *of this size* give on average, not for the ECE
of the population, whose differences are larger.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.metrics import calibration, curves, ood, ranking
from kepsvgp.metrics.inputs import Array, Outcome, as_tensor, outcome, warn_undefined
from kepsvgp.metrics.registry import METRICS

NAMES = tuple(metric.name for metric in METRICS.values() if metric.needs == "probs")
# counts of this many examples in one go: some megabytes a tensor
_CHUNK = 2**20

Statistic = Callable[[Tensor], dict[str, Tensor]]


class Interval(NamedTuple):
    """The difference of a metric between two methods, A − B, and its interval."""

    difference: float
    low: float
    high: float


def paired_bootstrap(
    probs_a: Float[Array, "*run example class"],
    probs_b: Float[Array, "*other_run example class"],
    labels: Integer[Array, " example"],
    *,
    metrics: Sequence[str] = NAMES,
    parts: Sequence[int] | None = None,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Interval of metric(A) − metric(B) for each metric, with the conventions of `all_metrics`.

    With a leading axis of runs, paired where both sides have as many, the metric of a method is
    the mean over its runs, and the interval is one over runs and examples. With the sizes of
    `parts`, such as the folds of a cross-validation, whose models' confidences cannot be
    ranked together, each part is measured and resampled by itself, and the metric is the mean
    over the parts, weighted by size. Resamples in which a metric is undefined are left out; if it
    is undefined for the examples themselves the interval is NaN, with one warning for all.

    References:
        Efron and Tibshirani, 1993, An introduction to the bootstrap, section 13.3.
    """
    unknown = [name for name in metrics if name not in NAMES]
    if unknown:
        raise UserError(f"metrics must be among {', '.join(NAMES)}; got {', '.join(unknown)}.")
    both, targets = (as_tensor(probs_a), as_tensor(probs_b)), as_tensor(labels)
    sizes = (len(targets),) if parts is None else tuple(parts)
    if parts is not None and (
        {len(targets), *(probs.shape[-2] for probs in both)} != {sum(sizes)} or min(sizes) < 1
    ):
        raise UserError(
            f"parts must be sizes of one example or more that add up to {len(targets)}, for labels "
            f"and both predictions; got {sizes}."
        )
    # the last end is open, so that predictions of another length are refused as such
    rows = [slice(*ends) for ends in pairwise([*accumulate(sizes[:-1], initial=0), None])]
    sides = []
    for probs in both:
        of_parts = [_statistic(probs[..., part, :], targets[part], metrics) for part in rows]
        sides.append(_mean_over_parts(of_parts, sizes))
    return _intervals(sides, sizes, num_resamples, level, seed)


def paired_bootstrap_ood(
    in_scores_a: Float[Array, "*run familiar"],
    out_scores_a: Float[Array, "*run foreign"],
    in_scores_b: Float[Array, "*other_run familiar"],
    out_scores_b: Float[Array, "*other_run foreign"],
    *,
    positive: ood.Side,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Interval of A − B for the metrics of `ood_metrics`; both sets are resampled separately.

    Runs are treated as in `paired_bootstrap`.
    """
    sizes, others = (
        tuple(as_tensor(scores).shape[-1] for scores in side)
        for side in ((in_scores_a, out_scores_a), (in_scores_b, out_scores_b))
    )
    if sizes != others or min(sizes) < 1:
        raise UserError(
            "both methods must have scores of the same familiar and foreign examples, at least one "
            f"of each; got {sizes[0]} and {sizes[1]} for A, {others[0]} and {others[1]} for B."
        )
    sides = []
    for inside, outside in ((in_scores_a, out_scores_a), (in_scores_b, out_scores_b)):
        pairs = zip(_by_run(inside, 1), _by_run(outside, 1), strict=True)
        parts = [_ood_statistic(ood.pooled(*pair, positive)) for pair in pairs]
        sides.append(_of_runs(parts))
    return _intervals(sides, sizes, num_resamples, level, seed)


def _by_run(values: Array, num_axes: int) -> Tensor:
    """The values with exactly one leading axis of runs before their own axes."""
    tensor = as_tensor(values)
    return tensor.reshape(-1, *tensor.shape[-num_axes:])


def _statistic(probs: Array, labels: Array, metrics: Sequence[str]) -> Statistic:
    return _of_runs([_run_statistic(outcome(run, labels), metrics) for run in _by_run(probs, 2)])


def _of_runs(parts: list[Statistic]) -> Statistic:
    """The values of every run, (run, resample)."""

    def of_runs(weights: Tensor) -> dict[str, Tensor]:
        values = [part(weights) for part in parts]
        return {name: torch.stack([v[name] for v in values]) for name in values[0]}

    return of_runs


def _mean_over_parts(statistics: list[Statistic], sizes: tuple[int, ...]) -> Statistic:
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)

    def mean_over_parts(weights: Tensor) -> dict[str, Tensor]:
        pieces = zip(statistics, weights.split(sizes, dim=-1), strict=True)
        values = [statistic(piece) for statistic, piece in pieces]
        return {name: torch.stack([v[name] for v in values], -1) @ shares for name in values[0]}

    return mean_over_parts


def _run_statistic(given: Outcome, metrics: Sequence[str]) -> Statistic:
    means = {
        "accuracy": given.correct.double(),
        "nll": calibration.each_nll(given),
        "brier": calibration.each_brier(given),
    }
    order = curves.order_by(given.confidence)
    is_ranked = bool(set(metrics) - {*means, "mcc", "ece"})

    def statistic(weights: Tensor) -> dict[str, Tensor]:
        values = {name: weights @ each / weights.sum(-1) for name, each in means.items()}
        if "mcc" in metrics:
            values["mcc"] = ranking.matthews(given, weights)
        if "ece" in metrics:
            values["ece"] = calibration.top_label_ece(given, 15, weights)
        if is_ranked:
            counts = curves.tally(order, given.correct, weights)
            values |= ranking.failure_metrics(counts, "exact")
        return {name: values[name] for name in metrics}

    return statistic


def _ood_statistic(both: ood.Pooled) -> Statistic:
    order = curves.order_by(both.scores)

    def statistic(weights: Tensor) -> dict[str, Tensor]:
        return ood.detection(curves.tally(order, both.is_positive, weights))._asdict()

    return statistic


def _intervals(
    sides: list[Statistic], sizes: tuple[int, ...], num_resamples: int, level: float, seed: int
) -> dict[str, Interval]:
    if num_resamples < 1 or not 0 < level < 1:
        raise UserError(
            "num_resamples must be at least 1 and level must lie in (0, 1); "
            f"got {num_resamples} and {level}."
        )

    observed = [side(torch.ones(1, sum(sizes), dtype=torch.float64)) for side in sides]
    generator = torch.Generator().manual_seed(seed)
    chunk = max(1, _CHUNK // sum(sizes))
    drawn = []
    for start in range(0, num_resamples, chunk):
        weights = _resample(min(chunk, num_resamples - start), sizes, generator)
        drawn.append([side(weights) for side in sides])
    quantiles = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    intervals = {}
    for name in observed[0]:
        ours, theirs = (values[name].squeeze(-1) for values in observed)
        value = ours.mean() - theirs.mean()
        resampled = torch.cat([a[name].mean(dim=0) - b[name].mean(dim=0) for a, b in drawn])
        resampled = resampled + _run_noise(ours, theirs, num_resamples, seed)
        ends = resampled.nanquantile(quantiles).where(~value.isnan(), torch.nan)
        intervals[name] = Interval(float(value), float(ends[0]), float(ends[1]))
    undefined = [name for name, found in intervals.items() if math.isnan(found.difference)]
    if undefined:
        warn_undefined(undefined, "one of the two predictions has no value", stacklevel=4)
    return intervals


def _run_noise(
    ours: Float[Tensor, " run"], theirs: Float[Tensor, " other_run"], count: int, seed: int
) -> Float[Tensor, " count"]:
    """Draws of how far other runs could move the difference of the means: sd / √S · t."""
    paired = len(ours) == len(theirs)
    noise = torch.zeros(count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for values in [ours - theirs] if paired else [ours, theirs]:
        if len(values) > 1:
            normal = torch.randn(len(values), count, dtype=torch.float64, generator=generator)
            t = normal[0] / normal[1:].square().mean(dim=0).sqrt()
            noise += values.std() / len(values) ** 0.5 * t
    return noise


def _resample(count: int, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """How often each example occurs when every set is drawn from itself with replacement."""
    parts = []
    for size in sizes:
        drawn = torch.randint(size, (count, size), generator=generator)
        counts = torch.zeros(count, size, dtype=torch.float64)
        parts.append(counts.scatter_add_(1, drawn, torch.ones(1).double().expand(count, size)))
    return torch.cat(parts, dim=1)
