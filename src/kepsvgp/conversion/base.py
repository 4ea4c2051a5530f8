"""What all converted attention modules share: the KEP layer in the middle, and how it begins.

A foreign self-attention module is heads(x) followed by an output map. Conversion replaces the
heads, softmax(Q Kᵀ) V, by a KEP layer with the trained query and key maps, and keeps the output
map, the signature and what is returned. A module of another library is served by a subclass of
`ConvertedAttention` with three short methods: `matches`, `read` and `forward`.
"""

import inspect
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import KEPAttention
from kepsvgp.conversion.maps import Affine, Maps, find_maps
from kepsvgp.errors import UserError

# the child of a module that stays and is looked at
WATCH = "watch"
# saved with a model in full: it must come back as it was when another version has others
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(KEPAttention).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("qk_bias", "qk_dim")
}


class Source(NamedTuple):
    """What a conversion takes over from an attention module."""

    query: nn.Linear | Affine
    key: nn.Linear | Affine
    value: nn.Linear | Affine
    num_heads: int
    output: nn.Module | None = None
    """What follows the heads within the module; None where that is outside."""


class ConvertedAttention(nn.Module):
    """A foreign self-attention module whose heads are a KEP layer.

    Subclasses say which modules they replace (`matches`), what to take from them (`read`) and
    how they are called (`forward`, which ends in `attend`).

    Args:
        module: The trained attention module.
        rank: Rank of the KEP layer; the width of a head by default, at which it has room for
            all that the values carry.
        settings: Further arguments of `KEPAttention`.
    """

    start_error: float | None = None

    def __init__(self, module: nn.Module, *, rank: int | None = None, **settings: Any) -> None:
        super().__init__()
        source = self.read(module)
        weight = source.query.weight
        dim = weight.shape[1]
        if weight.shape != (dim, dim) or source.key.weight.shape != (dim, dim):
            raise UserError(
                f"query and key maps must be square, ({dim}, {dim}); got {tuple(weight.shape)} and "
                f"{tuple(source.key.weight.shape)}. Heads of another width cannot be converted."
            )
        rank = dim // source.num_heads if rank is None else rank
        self.settings: dict[str, Any] = DEFAULTS | {"rank": rank} | settings
        bias = source.query.bias is not None or source.key.bias is not None
        self.kep = KEPAttention(dim, source.num_heads, qk_bias=bias, **self.settings)
        self.output = nn.Identity() if source.output is None else source.output
        copy_maps(self.kep, source)
        self.kep.to(weight.device, weight.dtype)
        self.train(module.training)
        # maps that were frozen stay so; what is new has to be trained
        self.kep.to_qk.requires_grad_(weight.requires_grad)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether `module` is what this class replaces."""
        raise NotImplementedError

    @classmethod
    def read(cls, module: nn.Module) -> Source:
        """The parts of `module` to take over; by default the maps that its structure shows."""
        maps = find_maps(module)
        if maps is None:
            raise UserError(f"{type(module).__name__} has no query, key and value maps to read.")
        return Source(*maps, cls.output_of(module))

    @classmethod
    def output_of(cls, module: nn.Module) -> nn.Module | None:
        """What follows the heads within the module."""
        return None

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Why this one cannot be converted although it matches, or None."""
        return None

    def attend(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, "_ _"] | None = None,
    ) -> Float[Tensor, "batch token dim"]:
        """A draw of the module's output; `mask` is True at real tokens.

        Where the first token alone is carried through the samples, `x` is only that, of each.
        """
        return self.output(self.kep(x, mask))

    def tokens_of(self, output: Any) -> Float[Tensor, "batch token dim"]:
        """The tokens in what the replaced module returns: its first tensor, batch first."""
        return output[0] if isinstance(output, tuple) else output

    def extra_repr(self) -> str:
        """How far the warm start left the layer from the one it replaced."""
        return "" if self.start_error is None else f"start_error={self.start_error:.3f}"


def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Puts `module` in the place called `name`, and wherever else the model has what was there.

    The model itself has the empty name.
    """
    if not name:
        return module
    old = model.get_submodule(name)
    everywhere = list(model.named_modules(remove_duplicate=False))
    for place in [place for place, each in everywhere if each is old]:
        parent, _, attribute = place.rpartition(".")
        setattr(model.get_submodule(parent), attribute, module)
    return model


@torch.no_grad()
def copy_maps(kep: KEPAttention, source: Source | Maps) -> None:
    """Copies the query and key maps, and begins from the values where the projection has them.

    With H_e = H_r = X W_vᵀ P, v at its mean I and W = Pᵀ, where P spans the leading directions
    of the values of all heads, the output is (K + Kᵀ) V / n: attention with a cosine kernel.
    """
    maps = (source.query, source.key)
    kep.to_qk.weight.copy_(torch.cat([each.weight for each in maps]))
    if kep.to_qk.bias is not None:
        none = torch.zeros(len(kep.to_qk.bias) // 2)
        biases = [none if each.bias is None else each.bias.cpu() for each in maps]
        kep.to_qk.bias.copy_(torch.cat(biases))
    if kep.projection != "dual" or len(source.value.weight) != kep.dim:
        return
    # (head value dim)
    values = source.value.weight.float().unflatten(0, (kep.num_heads, -1)).cpu()
    kept = min(kep.rank, values.shape[1])
    scatter = torch.einsum("h v c, h w c -> v w", values, values)
    # eigh sorts upwards
    basis = torch.linalg.eigh(scatter).eigenvectors.flip(-1)[:, :kept]
    coefficients = torch.einsum("h v c, v r -> h r c", values, basis)
    dual = kep.to_dual.weight.unflatten(0, (2 * kep.num_heads, -1))
    dual[:, :kept] = coefficients.repeat(2, 1, 1)
    kep.v_mean.copy_(torch.eye(kep.rank).expand_as(kep.v_mean))
    # ranks beyond the width of a head begin silent
    kep.to_output.weight.zero_()
    kep.to_output.weight[:, :kept] = basis
    kep.to_output.bias.zero_()
    if source.value.bias is not None:
        by_head = source.value.bias.float().unflatten(0, (kep.num_heads, -1))
        kep.to_output.bias.copy_(by_head.mean(dim=0))


Adapter = type[ConvertedAttention]
