"""A posterior for an attention module that stays as it is: f ~ GP(attention, K Kᵀ).

The trained attention is the mean function, whatever it does inside (rotary or relative positions,
windows, a causal mask), and a pair of GPs on the module's input adds its draw to the output. Its
own mean is zero at first, so a converted model is the very model that it was. The module keeps
its place, its class and the names of its weights; the pair is a child called `kep`, and a forward
hook adds what it draws.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kepsvgp.attention import KEPAttention
from kepsvgp.attention.base import used_module
from kepsvgp.conversion.base import DEFAULTS, ConvertedAttention, copy_maps
from kepsvgp.conversion.maps import find_heads, find_maps, find_width
from kepsvgp.conversion.masks import sequences
from kepsvgp.errors import UserError

# q(v) at the start: next to no spread, until `fit_posterior` or training finds one
START_SCALE = 1e-3
# attention to another sequence
_OTHERS = ("context", "encoder_hidden_states", "key_value_states", "kv", "memory")


class Pair(KEPAttention):
    """The pair of GPs beside an attention module; `settings` are what it was made with."""

    arguments: tuple[str, ...] = ()
    """Names of the arguments of the module, in order."""
    counted_in: tuple[torch.dtype, ...] = ()
    """What the module's last output and the draw for it were in."""

    def __init__(self, dim: int, num_heads: int, settings: dict[str, Any], **given: Any) -> None:
        super().__init__(dim, num_heads, **settings, **given)
        self.settings = settings

    @property
    def is_linear(self) -> bool:
        """Whether predictions take the model for linear in v, as `fit_posterior` does."""
        return self.noise == "joint"

    def draw(
        self, num_samples: int, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "sample head rank value"] | Int[Tensor, " sample"]:
        """Draws in pairs, each with its mirror image at the mean, which their mean then is."""
        if self.noise == "token":
            return super().draw(num_samples, generator=generator)
        drawn = super().draw((num_samples + 1) // 2, generator=generator)
        return torch.cat([drawn, 2 * self.v_mean.to(drawn) - drawn])[:num_samples]

    def add(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """What the forward hook makes of the module's output."""
        return _plus(module, self, args, kwargs, output, self)

    def add_first(
        self, module: nn.Module, args: Any, kwargs: Any, output: Any, samples: int
    ) -> Any:
        """The first token of the module's output with the draws of all samples.

        The batches of the samples follow each other along the first axis.
        """
        found: list[Tensor] = []

        def draw(x: Tensor, mask: Tensor | None) -> Tensor:
            found.append(self.first_token(x, mask, num_samples=samples))
            return torch.zeros_like(x)

        first = _in_output(_plus(module, self, args, kwargs, output, draw))[:, :1]
        drawn = first + found[0].to(first.dtype)
        return _with_tokens(output, drawn.flatten(0, 1))


def make_pair(module: nn.Module, settings: Mapping[str, Any]) -> Pair:
    """A pair for a module, which takes over its trained maps where they are to be had."""
    maps = find_maps(module)
    dim = find_width(module) if maps is None else maps.query.weight.shape[1]
    if dim is None:
        raise UserError(
            f"{type(module).__name__} must have a linear map, by which its width is known; it has "
            "none. Name the module that makes queries and keys."
        )
    num_heads = find_heads(module, dim) if maps is None else maps.num_heads
    if dim % num_heads != 0:
        maps, num_heads = None, 1
    width = dim // num_heads
    head_dim = min(16, width) if maps is None else len(maps.query.weight) // num_heads
    start = {"rank": min(width, 32), "posterior_scale": START_SCALE}
    bias = maps is not None and (maps.query.bias is not None or maps.key.bias is not None)
    pair = Pair(
        dim,
        num_heads,
        DEFAULTS | start | dict(settings),
        qk_dim=num_heads * head_dim,
        qk_bias=bias,
    )
    if maps is not None:
        copy_maps(pair, maps)
    with torch.no_grad():
        pair.v_mean.zero_()
        pair.to_output.bias.zero_()
    like = next(module.parameters())
    return pair.to(like.device, like.dtype).train(module.training)


def attach(module: nn.Module, pair: Pair) -> None:
    """Puts a pair beside a module."""
    pair.arguments = tuple(inspect.signature(module.forward).parameters)
    module.kep = pair
    module.register_forward_hook(add_draw, with_kwargs=True)


def pair_of(module: nn.Module) -> Pair | None:
    """The pair that `attach` gave a module."""
    child = module._modules.get("kep")
    pair = None if child is None else used_module(child)
    return pair if isinstance(pair, Pair) else None


def converted_layers(model: nn.Module) -> dict[str, Any]:
    """The modules of a model that have a pair, or a layer in their place, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, ConvertedAttention) or pair_of(module) is not None
    }


def pairs_of(model: nn.Module) -> list[KEPAttention]:
    """What `convert` put into a model."""
    layers = converted_layers(model).values()
    return [used_module(layer.kep) for layer in layers]  # pyright: ignore[reportReturnType]


def add_draw(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """The forward hook: the module's output, and the pair's draw for the same input."""
    pair: Any = pair_of(module)
    return _plus(module, pair, args, kwargs, output, pair)


def _plus(
    module: Any,
    pair: Any,
    args: Any,
    kwargs: Any,
    output: Any,
    draw: Callable[[Tensor, Tensor | None], Tensor],
) -> Any:
    given = dict(zip(pair.arguments, args, strict=False)) | kwargs
    tokens = tokens_of(module, pair, given)
    out = _in_output(output)
    if not isinstance(out, Tensor) or out.shape != tokens.shape:
        raise UserError(
            f"{type(module).__name__} must give as many tokens as it gets, of the same width; got "
            f"{tuple(tokens.shape)} and gave "
            f"{tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__}."
        )
    drawn = draw(*sequences(module, tokens, given))
    if isinstance(module, nn.MultiheadAttention) and not module.batch_first and tokens.ndim == 3:
        drawn = drawn.transpose(0, 1)
    if not torch.compiler.is_compiling():
        pair.counted_in = (out.dtype, drawn.dtype)
    return _with_tokens(output, out + drawn.reshape(out.shape).to(out.dtype))


def _in_output(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) else output


def _with_tokens(output: Any, tokens: Tensor) -> Any:
    """The same output with these tokens in it: a list stays one, and a named tuple too."""
    if not isinstance(output, tuple | list):
        return tokens
    make = getattr(output, "_make", type(output))
    return make([tokens, *output[1:]])


def tokens_of(module: nn.Module, pair: Any, given: Mapping[str, Any]) -> Tensor:
    """The tokens that enter self-attention; attention to any others is refused."""
    tokens = given.get(pair.arguments[0])
    others = [name for name in _OTHERS if given.get(name) is not None]
    if isinstance(module, nn.MultiheadAttention):
        others += [name for name in ("key", "value") if given.get(name) is not tokens]
    if others or not isinstance(tokens, Tensor):
        raise UserError(
            f"{type(module).__name__} must be self-attention: its first argument the tokens, and "
            f"no others; got {', '.join(others) or type(tokens).__name__}. Convert another layer."
        )
    return tokens
