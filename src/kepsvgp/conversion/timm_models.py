"""Conversion of timm's Vision Transformers."""

from torch import Tensor, nn

from kepsvgp.conversion.base import ConvertedAttention
from kepsvgp.errors import UserError


class ConvertedTimmAttention(ConvertedAttention):
    """Takes the place of `timm.layers.Attention`."""

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether `module` is timm's plain attention; told by name, so that timm may be absent."""
        kind = type(module)
        return kind.__module__.startswith("timm.") and kind.__name__ == "Attention"

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Variants that do more to queries, keys or the output than a linear map."""
        for name in ("q_norm", "k_norm"):
            if not isinstance(getattr(module, name, nn.Identity()), nn.Identity):
                return f"it normalises its queries and keys ({name}), which the kernel does itself"
        if getattr(module, "gate", None) is not None:
            return "its output is gated by its input"
        return None

    @classmethod
    def output_of(cls, module: nn.Module) -> nn.Module:
        """Norm, projection and dropout."""
        names = [name for name in ("norm", "proj", "proj_drop") if hasattr(module, name)]
        return nn.Sequential(*(module.get_submodule(name) for name in names))

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """As `timm.layers.Attention`, for images, whose patches are all real."""
        if attn_mask is not None or is_causal:
            raise UserError(
                "attn_mask and is_causal must be left out: this layer was converted, and its "
                "kernel is one of all patches with all. Leave masked attention unconverted."
            )
        return self.attend(x)
