"""Export of a model as a deterministic graph, for `torch.export` or ONNX.

A graph cannot draw random numbers that depend on nothing but a seed, and should not: it either
takes the draws of the inducing variables as inputs, or has S of them written into it and returns
their average. Sizes of the batch and lengths of sequences stay free.
"""

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kepsvgp.attention.base import fixed_draws, stochastic_layers
from kepsvgp.attention.novelty import last_attention
from kepsvgp.errors import UserError, told
from kepsvgp.files import replacing
from kepsvgp.inference.calls import call, check_tensors, logits_with_draws
from kepsvgp.inference.mode import evaluating
from kepsvgp.inference.observed import observed
from kepsvgp.inference.prediction import Prediction

Format = Literal["torch", "onnx"]
Draws = Literal["fixed", "input"]
Axes = Mapping[str, Mapping[int, Any]]
SUFFIXES: dict[str, Format] = {".pt2": "torch", ".onnx": "onnx"}
TOLERANCE = 1e-4


class WithDraws(nn.Module):
    """The graph that takes draws: `(inputs, draws)` → logits `(sample, batch, class)`.

    `draws` has one tensor for each stochastic layer, as `layer.draw(num_samples)` gives it, or
    others of that shape unless `mirrored` promises that they are those.
    """

    def __init__(self, model: nn.Module, mirrored: bool = False) -> None:
        super().__init__()
        self.model, self.mirrored = model, mirrored

    def forward(self, inputs: Any, draws: list[Tensor]) -> Tensor:
        """Logits of every sample."""
        layers = stochastic_layers(self.model)
        held: dict[nn.Module, Tensor] = dict(zip(layers, draws, strict=True))
        return logits_with_draws(self.model, inputs, held, mirrored=self.mirrored)


class Averaged(nn.Module):
    """The graph with its draws inside: `inputs` → the tensors of a `Prediction`."""

    def __init__(self, model: nn.Module, draws: list[Tensor]) -> None:
        super().__init__()
        self.with_draws = WithDraws(model, mirrored=True)
        self.num_layers = len(draws)
        for layer, u in enumerate(draws):
            self.register_buffer(f"draws_{layer}", u)

    def forward(self, inputs: Any) -> tuple[Tensor, ...]:
        """`probs` and `aleatoric`, and `novelty` and `novelty_p` where they were fitted."""
        draws = [self.get_buffer(f"draws_{layer}") for layer in range(self.num_layers)]
        model = self.with_draws.model
        found = observed(model, lambda: self.with_draws(inputs, draws), lambda: call(model, inputs))
        prediction = Prediction.from_logits(found.logits)
        return prediction.probs, prediction.aleatoric, *found.scores().values()


@told
def export(
    model: nn.Module,
    path: Path | str,
    inputs: Any,
    *,
    format: Format | None = None,
    draws: Draws = "fixed",
    num_samples: int = 10,
    generator: torch.Generator | None = None,
    dynamic: Axes | None = None,
) -> Path:
    """Writes a deterministic graph of `model`, checked against the model itself.

    Args:
        model: Any classifier with KEP layers, our own or converted.
        path: The file to write, such as `model.pt2` or `model.onnx`. The weights of a large ONNX
            model, above 1.5 GB, are written beside it, to `model.onnx.data`.
        inputs: An example batch, a tensor or a mapping. Its contents do not matter.
        format: `"torch"` for `torch.export.load`, `"onnx"` for any ONNX runtime. By default what
            the name ends in says, and torch where it says nothing.
        draws: `"fixed"` writes `num_samples` draws into the graph, which returns averaged
            probabilities and the aleatoric uncertainty, and the novelty where it was fitted.
            `"input"` makes a graph that takes draws after the inputs, and returns the logits of
            every sample.
        num_samples: Number of samples.
        generator: Source of the fixed draws.
        dynamic: Axes of free size by input (`"input"` for a single tensor), and their names. By
            default the first axis, and for inputs of tokens also the second, where the model
            allows it.

    Examples:
        >>> export(convert(model), "model.pt2", inputs).name
        'model.pt2'
    """
    path = Path(path)
    format = _format(path, format)
    if num_samples < 1:
        raise UserError(f"num_samples must be at least 1; got {num_samples}.")
    _check_layers(model)
    check_tensors(inputs)
    inputs = _at_least_two(inputs)
    axes = _default_axes(inputs) if dynamic is None else dynamic
    names = list(inputs) if isinstance(inputs, Mapping) else ["input"]
    if sorted(axes) != sorted(names):
        raise UserError(f"dynamic must name the axes of {', '.join(names)}; got {', '.join(axes)}.")
    with torch.no_grad(), evaluating(model) as model:
        with fixed_draws(model, num_samples, generator=generator) as held:
            values = [u.detach() for u in held.values()]
        graph = Averaged(model, values) if draws == "fixed" else WithDraws(model)
        arguments = {"inputs": inputs} | ({} if draws == "fixed" else {"draws": values})
        with replacing(path) as temporary, warnings.catch_warnings():
            # the exporters warn of their own insides
            warnings.simplefilter("ignore")
            if format == "torch":
                _write_torch(graph.eval(), arguments, axes, temporary)
            else:
                made = temporary.with_name(path.name)
                _write_onnx(graph.eval(), arguments, axes, made)
                _move_weights(made, path.resolve())
                made.replace(temporary)
    return path


def _move_weights(made: Path, path: Path) -> None:
    """Above a size ONNX has its weights in a file of their own, which goes beside the graph."""
    for weights in [file for file in made.parent.iterdir() if file != made]:
        # an old graph would read the new weights
        path.unlink(missing_ok=True)
        with replacing(path.with_name(weights.name)) as temporary:
            weights.replace(temporary)


def _format(path: Path, wanted: Format | None) -> Format:
    """The format that is wanted, or that the name of the file says; the two must agree."""
    said = SUFFIXES.get(path.suffix.lower())
    if wanted and said and wanted != said:
        raise UserError(
            f"format must fit the name of the file; got {wanted!r} for {path.name}. Leave format "
            f"out, or let the name end in .{'onnx' if wanted == 'onnx' else 'pt2'}."
        )
    return wanted or said or "torch"


def _write_torch(
    graph: Averaged | WithDraws, arguments: dict[str, Any], axes: Axes, path: Path
) -> None:
    dim = torch.export.Dim
    free = {
        name: {axis: dim.DYNAMIC if isinstance(free, str) else free for axis, free in each.items()}
        for name, each in axes.items()
    }
    expected = [(each, graph(**each)) for each in (arguments, _first_row(arguments))]
    shapes = _shapes(arguments, free)
    with _followed(graph):
        program = torch.export.export(graph, (), arguments, dynamic_shapes=shapes)
        module = program.module()
        found = [module(**each) for each, _ in expected]
    for (_, wanted), actual in zip(expected, found, strict=True):
        _check_equal(graph, wanted, actual)
    # torch ends the whole process where it cannot write to a file, on a full disk for one
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def _write_onnx(
    graph: Averaged | WithDraws, arguments: dict[str, Any], axes: Axes, path: Path
) -> None:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("This needs ONNX: pip install 'kepsvgp[onnx]'.") from None
    fixed = "draws" not in arguments
    graph(**arguments)
    with _followed(graph):
        program = torch.onnx.export(
            graph, (), kwargs=arguments, dynamic_shapes=_shapes(arguments, axes),
            input_names=list(_flatten(arguments)),
            output_names=_output_names(graph), dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for each in (arguments, _first_row(arguments)):
        flat = _flatten(each)
        feed = {given.name: flat[given.name].numpy() for given in session.get_inputs()}
        found = tuple(torch.as_tensor(value) for value in session.run(None, feed))
        _check_equal(graph, graph(**each), found if fixed else found[0])


@contextmanager
def _followed(graph: Averaged | WithDraws) -> Iterator[None]:
    """Says of a model that answers, but of which torch makes no graph for batches of any size."""
    try:
        yield
    except Exception as error:  # the exporters raise whatever they stumble over
        model = (graph.with_draws if isinstance(graph, Averaged) else graph).model
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model must be one that torch.export can follow; {type(model).__name__} is not, at "
            "least with these axes free: what it does depends on more than shapes "
            f"({reason}). predict and `kepsvgp serve` need no graph."
        ) from error


def _output_names(graph: nn.Module) -> list[str]:
    if isinstance(graph, WithDraws):
        return ["logits"]
    layer = last_attention(graph)
    novelty = None if layer is None else layer.novelty
    names = ["probs", "aleatoric"] + ["novelty"] * (novelty is not None)
    return names + ["novelty_p"] * (novelty is not None and len(novelty.calibration) > 0)


def _check_layers(model: nn.Module) -> None:
    layers = stochastic_layers(model)
    if not layers:
        raise UserError("model must have a KEP layer; got none. Export others with torch alone.")
    for layer in layers:
        if getattr(layer, "noise", "joint") != "joint" or not hasattr(layer, "v_mean"):
            raise UserError(
                "all stochastic layers must be KEPAttention with noise='joint': the draws of "
                f"{type(layer).__name__} with other noise are seeds, which a graph cannot use."
            )


def _default_axes(inputs: Any) -> dict[str, dict[int, Any]]:
    if not isinstance(inputs, Mapping):
        has_tokens = not inputs.is_floating_point() and inputs.ndim == 2
        # free if the model allows it: one with positions of its own may have a fixed length
        return {"input": {0: "batch"} | ({1: torch.export.Dim.AUTO} if has_tokens else {})}
    has_tokens = any(not each.is_floating_point() and each.ndim == 2 for each in inputs.values())
    axes = {0: "batch", 1: "length"} if has_tokens else {0: "batch"}
    return {
        name: {axis: title for axis, title in axes.items() if axis < value.ndim}
        for name, value in inputs.items()
    }


def _shapes(arguments: dict[str, Any], axes: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    """`dynamic_shapes` of the arguments: of the inputs as said, of draws none."""
    is_mapping = isinstance(arguments["inputs"], Mapping)
    shapes: dict[str, Any] = {"inputs": dict(axes) if is_mapping else axes["input"]}
    if "draws" in arguments:
        shapes["draws"] = [{} for _ in arguments["draws"]]
    return shapes


def _at_least_two(inputs: Any) -> Any:
    """The batch with two rows or more: an axis of size 1 would be taken for a fixed one."""

    def repeat(value: Tensor) -> Tensor:
        return value if value.shape[0] > 1 else torch.cat([value, value])

    if isinstance(inputs, Mapping):
        return {name: repeat(value) for name, value in inputs.items()}
    return repeat(inputs)


def _flatten(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors by the name that they have in an ONNX graph."""
    inputs = arguments["inputs"]
    named = dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}
    return named | {f"draws_{i}": u for i, u in enumerate(arguments.get("draws", []))}


def _first_row(arguments: dict[str, Any]) -> dict[str, Any]:
    inputs = arguments["inputs"]
    if isinstance(inputs, Mapping):
        return arguments | {"inputs": {name: value[:1] for name, value in inputs.items()}}
    return arguments | {"inputs": inputs[:1]}


def _check_equal(graph: nn.Module, expected: Any, actual: Any) -> None:
    # half precisions round in another order
    tolerance = max(TOLERANCE, *(torch.finfo(p.dtype).eps for p in graph.parameters()))
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = actual if isinstance(actual, tuple) else (actual,)
    # p-values, the last, make steps, and the novelty before is a difference of large numbers
    pairs = zip((1, 1, 10), expected[:3], actual[:3], strict=False)
    for factor, first, second in pairs:
        worst = ((first - second).abs().max() / first.abs().max().clamp_min(1)).item()
        if not worst <= factor * tolerance:
            raise RuntimeError(f"the exported graph differs from the model by {worst:.2e}")
