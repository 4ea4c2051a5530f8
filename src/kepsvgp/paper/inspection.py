"""Is this layer active? What a trained model's attention layers have learnt, in numbers.

For every layer the spectrum of its kernel; for KEP layers also how much of it the rank
explains, how near the scores are to the exact singular vectors, and what became of the
posterior.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.base import fixed_draws
from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.primal import PrimalAttention
from kepsvgp.conversion.mean import Pair
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.errors import UserError
from kepsvgp.inference.activity import ADVICE, Activity, activity
from kepsvgp.inference.calls import call, to_device
from kepsvgp.inference.mode import evaluating
from kepsvgp.maths import svgp
from kepsvgp.ops.device import find_device
from kepsvgp.paper.findings import EXAMPLES, findings
from kepsvgp.paper.kernels import (
    agreement,
    factored_svd,
    kind_of,
    layer_features,
    layer_svd,
    normalised_spectrum,
    random_scores,
)
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection, LayerReport, Posterior, Shares, Sides
from kepsvgp.runs.weights import Checkpoint
from kepsvgp.serving.rows import open_images, open_texts
from kepsvgp.serving.saved import open_folder


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
    config = run.config()
    model = run.model(checkpoint).to(find_device(config.train.device, is_binding=False))
    inspection = inspect_model(model, batches(some, 16), split=split, seed=config.seed)
    found = measure_activity(model, benchmark)
    layers = [_with_activity(layer, found.get(layer.name)) for layer in inspection.layers]
    about = {"checkpoint": checkpoint or config.train.select, "layers": layers}
    inspection = inspection.model_copy(update=about)
    run.write_inspection(inspection)
    return inspection


def measure_activity(model: nn.Module, benchmark: Benchmark) -> dict[str, Activity]:
    """How active the KEP layers are, by examples of the validation set; nothing without any."""
    if not any(isinstance(module, KEPAttention) for module in model.modules()):
        return {}
    some = benchmark.val.subset(torch.arange(min(ACTIVITY_EXAMPLES, len(benchmark.val))))
    device = next(model.parameters()).device
    loader = batches(some, 64, bucket=True)
    return activity(model, loader, num_train=len(benchmark.train), device=device)


def _with_activity(layer: LayerReport, found: Activity | None) -> LayerReport:
    if found is None:
        return layer
    advice = [f"{found.word}: {ADVICE[found.word]}"] if ADVICE[found.word] else []
    return layer.model_copy(update={"activity": found, "findings": [*layer.findings, *advice]})


# examples of the validation set by which the activity of layers is judged
ACTIVITY_EXAMPLES = 256


def inspect_saved(
    folder: Path, data: Path, text_column: str = "text", *, examples: int = EXAMPLES
) -> Inspection:
    """Looks at the attention layers of a converted model while it sees some inputs."""
    saved = open_folder(folder)
    source = open_images(data) if saved.task == "image" else open_texts(data, text_column)
    rows = [row for row in islice(source.rows, examples) if row.problem is None]
    if not rows:
        raise UserError(f"{data} must have inputs that can be read; it has none.")
    items = [saved.load(row.content) for row in rows]
    parts = (items[start : start + 16] for start in range(0, len(items), 16))
    device = next(saved.model.parameters()).device
    inputs = ((to_device(saved.prepare(part), device), part, None) for part in parts)
    return inspect_model(saved.model, inputs, split="given")


class Seen(NamedTuple):
    """What one layer was given for one batch."""

    x: Tensor
    mask: Tensor | None


@torch.no_grad()
def inspect_model(
    model: nn.Module, batches: Iterable[Any], *, split: str, seed: int = 0
) -> Inspection:
    """Looks at every attention layer of ours while the model sees some batches.

    Stochastic layers have one draw, that of `seed`, for all batches. The model may be on any
    device; what its layers are given is looked at in float64 on a CPU.
    """
    device = next(model.parameters()).device
    with evaluating(model) as model:
        layers = {name: module for name, module in model.named_modules() if kind_of(module)}
        copies = {name: copy.deepcopy(layer).cpu() for name, layer in layers.items()}
        looks: dict[str, list[_Look]] = {name: [] for name in layers}
        weights: list[int] = []
        for inputs, labels, _ in batches:
            weights.append(len(labels))
            generator = torch.Generator().manual_seed(seed)
            with _watching(layers) as seen, fixed_draws(model, 1, generator=generator):
                call(model, to_device(inputs, device))
            for name, layer in copies.items():
                looks[name].append(_look(layer, *seen[name]))
    reports = [
        _report(name, layer, _mean_look(looks[name], weights)) for name, layer in copies.items()
    ]
    return Inspection(examples=sum(weights), split=split, layers=reports)


@contextmanager
def _watching(layers: dict[str, nn.Module]) -> Iterator[dict[str, Seen]]:
    """Within the block, remembers what the layers are given."""
    seen: dict[str, Seen] = {}

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            x, *rest = args
            mask = rest[0] if rest else kwargs.get("mask")
            seen[name] = Seen(x.flatten(end_dim=-3).cpu(), None if mask is None else mask.cpu())

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


# what a batch, or all of them, says about a layer: vectors by name, means over the examples
_Look = dict[str, Tensor]


def _look(layer: nn.Module, x: Tensor, mask: Tensor | None) -> _Look:
    if not isinstance(layer, KEPAttention | PrimalAttention):
        return {"spectrum": normalised_spectrum(layer_svd(layer, x, mask).values)}
    features = layer_features(layer, x, mask)
    svd = factored_svd(*features)
    # as many exact vectors as there are pairs; short sequences have fewer
    rank = min(layer.rank, svd.values.shape[-1])
    pair = layer.scores(x, mask)
    seen = {"spectrum": normalised_spectrum(svd.values)}
    for side, scores, phi, vectors in (
        ("left", pair.e, features.q, svd.left),
        ("right", pair.r, features.k, svd.right),
    ):
        exact = vectors[..., :rank]
        learnt = agreement(_top(scores, rank), exact)._asdict()
        chance = agreement(random_scores(phi, rank), exact).overlap
        for name, values in (learnt | {"chance": chance}).items():
            seen[f"{side} {name}"] = values.reshape(-1)
    return seen | _moments(layer, pair.e, pair.r, mask) if isinstance(layer, KEPAttention) else seen


def _top(scores: Float[Tensor, "*batch rank token"], rank: int) -> Tensor:
    """The scores of the strongest pairs of each head."""
    order = scores.square().sum(dim=-1).argsort(dim=-1, descending=True)[..., :rank]
    return scores.gather(-2, order.unsqueeze(-1).expand(*order.shape, scores.shape[-1]))


def _moments(layer: KEPAttention, e: Tensor, r: Tensor, mask: Tensor | None) -> _Look:
    """Variances and squared means of the GPs, and squared scores, which are 0 at padding, by head.

    Sums over both branches at the tokens of an example, and the number of these.
    """
    v_mean, v_tril = layer.v_mean.double(), _factors(layer)
    variance = energy = squares = torch.zeros(layer.num_heads, dtype=torch.float64)
    for scores in (e, r):
        found = svgp.posterior(scores.mT.double(), v_mean, v_tril)
        variance = variance + found.factor.square().sum(dim=(0, 2, 3, 4))
        energy = energy + found.mean.square().sum(dim=(0, 2, 3))
        squares = squares + scores.double().square().sum(dim=(0, 2, 3))
    num_tokens = torch.tensor([len(e) * e.shape[-1] if mask is None else int(mask.sum())])
    sums = {"variance": variance, "energy": energy, "squares": squares, "tokens": num_tokens}
    return {name: values.double() / len(e) for name, values in sums.items()}


def _report(name: str, layer: nn.Module, seen: _Look) -> LayerReport:
    kind, spectrum = kind_of(layer), seen["spectrum"]
    assert kind is not None
    heads = int(layer.num_heads)  # pyright: ignore[reportArgumentType]
    report = LayerReport(name=name, kind=kind, heads=heads, singular_values=spectrum.tolist())
    if not isinstance(layer, KEPAttention | PrimalAttention):
        return report

    def sides(what: str) -> Sides:
        return Sides(left=seen[f"left {what}"].tolist(), right=seen[f"right {what}"].tolist())

    def shares(what: str) -> Shares:
        return Shares(left=float(seen[f"left {what}"]), right=float(seen[f"right {what}"]))

    about = {
        "rank": layer.rank,
        "explained": min(1.0, float(spectrum[: layer.rank].sum())),
        "alignment": sides("alignment"),
        "principal": sides("principal"),
        "overlap": shares("overlap"),
        "chance": shares("chance"),
        "posterior": _posterior(layer, seen) if isinstance(layer, KEPAttention) else None,
    }
    report = report.model_copy(update=about)
    # nobody fits the scores beside an attention that stays to a kernel
    known = {"explained": None, "overlap": None} if isinstance(layer, Pair) else {}
    return report.model_copy(update={"findings": findings(report.model_copy(update=known))})


def _posterior(layer: KEPAttention, seen: _Look) -> Posterior:
    v_mean, v_tril = layer.v_mean.double(), _factors(layer)
    heads = range(layer.num_heads)
    kl = [float(svgp.inducing_kl(v_mean[h, None], v_tril[h, None])) for h in heads]
    # diag S_d = row sums of L_d²
    variances = v_tril.square().sum(dim=-1)
    variance, size = seen["variance"], seen["variance"] + seen["energy"]
    # where nothing is seen there is nothing to divide
    tiny = torch.finfo(size.dtype).tiny
    per_token = seen["squares"] / seen["tokens"].clamp_min(tiny)
    return Posterior(
        kl=kl,
        scale=variances.mean(dim=(1, 2)).sqrt().tolist(),
        signal=v_mean.square().mean(dim=(1, 2)).sqrt().tolist(),
        # √(var / (var + mean²))
        noise=(variance / size.clamp_min(tiny)).sqrt().tolist(),
        scores=(per_token / (2 * layer.rank)).sqrt().tolist(),
    )


def _factors(layer: KEPAttention) -> Tensor:
    v_tril = svgp.lower_cholesky(layer.v_tril_raw.double())
    return svgp.marginal_factors(v_tril, layer.num_heads, layer.rank)


def _mean_look(looks: list[_Look], weights: list[int]) -> _Look:
    """Weighted means; of vectors, shorter ones count as zero where they have ended."""
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    found = {}
    for name in looks[0]:
        each = [look[name].double() for look in looks]
        found[name] = shares @ nn.utils.rnn.pad_sequence(each, batch_first=True)
    return found
