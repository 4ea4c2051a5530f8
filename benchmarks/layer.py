"""One attention layer, forward and backward, penalties included."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.contenders import NaiveAttention, PaperKEPAttention
from benchmarks.timing import Contest, Limit, Options, contest
from kepsvgp.attention import KEPAttention, PenalisedAttention, SGPAttention, SoftmaxAttention
from kepsvgp.attention.kep import Merge, Projection
from kepsvgp.config.defaults import PROJECTION


@dataclass(frozen=True, slots=True)
class Shape:
    """The layer of one of the paper's models, and limits of its time: must, wish.

    The number of landmarks is the layer's default, ten for each singular pair.
    """

    name: str
    batch: int
    tokens: int
    dim: int
    heads: int
    rank: int
    merge: Merge
    inducing: int
    """Inducing points of SGPA, as in its paper."""
    dual: tuple[float, float]
    """What the default layer must keep, and what is wished for."""
    landmark: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"{self.merge}, batch {self.batch}, {self.tokens} tokens, width {self.dim}"
            f", {self.heads} heads, rank {self.rank}, {10 * self.rank} landmarks"
        )


SOFTMAX = ("softmax, fused", "softmax, plain")
SHAPES = [
    Shape("CIFAR", 128, 64, 384, 12, 10, "concat", 32, (0.70, 0.55), (0.80, 0.6)),
    Shape("IMDB", 32, 512, 128, 8, 10, "add", 50, (0.30, 0.20), (0.40, 0.25)),
    Shape("CoLA", 32, 32, 256, 4, 5, "add", 5, (0.85, 0.70), (1.00, 0.7)),
]
SMALL = [Shape("small", 2, 8, 24, 2, 3, "concat", 4, (0.70, 0.55), (0.80, 0.6))]


def contests(options: Options) -> Iterator[Contest]:
    """Every shape, then the compiled layer against the eager one."""
    shapes = SMALL if options.small else SHAPES
    for shape in shapes:
        layers = {
            "softmax, fused": SoftmaxAttention(shape.dim, shape.heads),
            "softmax, plain": NaiveAttention(shape.dim, shape.heads),
            "KEP": build(shape, KEPAttention),
            "KEP, landmarks": build(shape, KEPAttention, "landmark"),
            "KEP, N × s × s": build(shape, PaperKEPAttention, "landmark"),
            "SGPA": _sgpa(shape),
        }
        x, grad = tensors(shape)
        yield contest(
            f"layer, {shape.name}",
            {name: step(layer, x, grad) for name, layer in layers.items()},
            options,
            Limit("KEP", *shape.dual),
            Limit("KEP, landmarks", *shape.landmark),
            baselines=SOFTMAX,
            sizes=str(shape),
        )
    if shutil.which("c++") is not None:
        for shape in shapes:
            yield compiled(shape, options)


def compiled(shape: Shape, options: Options) -> Contest:
    """`torch.compile` of the whole layer, in one graph, against itself."""
    layer = build(shape, KEPAttention)
    x, grad = tensors(shape)
    return contest(
        f"compiled layer, {shape.name}",
        {
            "eager": step(layer, x, grad),
            "compiled": step(torch.compile(layer, fullgraph=True), x, grad),
        },
        options,
        # one percent of slack: the same speed is within the limit
        Limit("compiled", 1.01),
        baselines=("eager",),
        sizes=str(shape),
    )


def build(
    shape: Shape, kind: type[KEPAttention], projection: Projection = PROJECTION
) -> KEPAttention:
    """A KEP layer of this shape."""
    return kind(
        shape.dim,
        shape.heads,
        rank=shape.rank,
        merge=shape.merge,
        num_tokens=shape.tokens,
        projection=projection,
    )


def _sgpa(shape: Shape) -> SGPAttention:
    kernel = "ard" if shape.merge == "concat" else "exponential"
    return SGPAttention(shape.dim, shape.heads, num_inducing=shape.inducing, kernel=kernel)


def tensors(shape: Shape) -> tuple[Tensor, Tensor]:
    """Tokens, which want a gradient as inside a network, and a gradient of the output."""
    size = (shape.batch, shape.tokens, shape.dim)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=generator).requires_grad_()
    return x, torch.randn(size, generator=generator)


def step(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> Callable[[], None]:
    """Forward and backward of the layer and, where it has penalties, of those."""
    assert isinstance(layer, nn.Module)
    # a compiled layer wraps the one that has the penalties
    plain = getattr(layer, "_orig_mod", layer)

    def run() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        heads, grads = [layer(x)], [grad]
        if isinstance(plain, PenalisedAttention):
            heads += [term for term in plain.penalties() if term is not None and term.requires_grad]
            grads += [torch.ones(()) for _ in heads[1:]]
        torch.autograd.backward(heads, grads)

    return run
