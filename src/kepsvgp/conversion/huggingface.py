"""Conversion of Hugging Face 5.x encoders.

Modules are told by their structure, so nothing is imported from transformers, and families
that share the structure of a supported one are served too. The module is replaced and not the
attention function: such a function sees neither the hidden states nor, unless a mask function
is registered beside it, the mask.
"""

import inspect
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from kepsvgp.conversion.base import WATCH, ConvertedAttention
from kepsvgp.errors import UserError

# another sequence, a cache, rotated positions, and several sequences in one row
_REFUSED = ("encoder_hidden_states", "past_key_values", "position_embeddings", "cu_seq")


class HuggingFaceAttention(ConvertedAttention):
    """What the families have in common: the call, the mask, and what is refused."""

    children_names: ClassVar[frozenset[str]]
    output_name: ClassVar[str | None] = None

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.config = module.config

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether `module` has these children, no others, a configuration, and is called so."""
        names = {name for name, _ in module.named_children() if name != WATCH}
        if names != cls.children_names or not hasattr(module, "config"):
            return False
        arguments = list(inspect.signature(module.forward).parameters)
        return arguments[:2] == ["hidden_states", "attention_mask"]

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Decoders."""
        causal = getattr(module, "is_causal", False) or getattr(module, "is_decoder", False)
        return "it is causal: a token must not see the ones after it" if causal else None

    @classmethod
    def output_of(cls, module: nn.Module) -> nn.Module | None:
        """The output map, where it is within the module."""
        return None if cls.output_name is None else module.get_submodule(cls.output_name)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """As the module it replaces; there are no attention weights to return."""
        if kwargs.get("output_attentions", getattr(self.config, "output_attentions", False)):
            raise UserError(
                "output_attentions must be off: a converted layer never forms the attention "
                "weights. Pass output_attentions=False, and look at the unconverted model."
            )
        for name in kwargs:
            if kwargs[name] is not None and name.startswith(_REFUSED):
                raise UserError(
                    f"{name} must be None: a converted layer is self-attention over whole "
                    "sequences, each in a row of its own, without cache and without positions."
                )
        return self.attend(hidden_states, token_mask(attention_mask)), None


class ConvertedBertAttention(HuggingFaceAttention):
    """Takes the place of the `SelfAttention` of BERT, RoBERTa and ELECTRA."""

    children_names = frozenset({"query", "key", "value", "dropout"})


class ConvertedDistilBertAttention(HuggingFaceAttention):
    """Takes the place of the attention of DistilBERT."""

    children_names = frozenset({"q_lin", "k_lin", "v_lin", "out_lin", "dropout"})
    output_name = "out_lin"


class ConvertedViTAttention(HuggingFaceAttention):
    """Takes the place of the attention of ViT and DeiT."""

    children_names = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
    output_name = "o_proj"


def token_mask(attention_mask: Any) -> Bool[Tensor, "batch token"] | None:
    """True at real tokens, from any of the masks that transformers passes to its layers.

    That is None, `(batch, token)`, or `(batch, 1, token, token)`: bool with True for what may
    be seen, or float with 0 for it.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim not in (2, 4):
        raise UserError(
            "attention_mask must be a tensor of two or four axes; got "
            f"{type(attention_mask).__name__}. Load the model with attn_implementation='sdpa'."
        )
    if attention_mask.ndim == 2:
        return attention_mask.bool()
    may_see = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
    tokens = may_see[:, 0, 0]
    # a check of the data, which a traced graph cannot hold
    if not torch.compiler.is_compiling() and not (may_see == tokens[:, None, None]).all():
        raise UserError(
            "attention_mask must hide the same tokens from every token (padding); got one that "
            "differs by token, as causal or windowed attention has. Leave it unconverted."
        )
    return tokens
