"""Matched noise: softmax attention with Gaussian noise as large as a KEP-SVGP's, as a control.

First a KEP-SVGP is trained; the variance of its layers' draws is measured, channel by channel, on
validation inputs. Then the same Transformer with softmax attention is trained and asked with
independent noise of that variance in the place of the draws. What KEP-SVGP does better is the
merit of its GPs, and not of noise.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.attention.noisy import NoisyAttention
from kepsvgp.config.sections import ModelConfig, Optional, RunConfig, Section
from kepsvgp.data import Benchmark, batches
from kepsvgp.inference.calls import call, to_device
from kepsvgp.inference.linear import kep_layers
from kepsvgp.methods.base import softmax_attention
from kepsvgp.methods.kep import KEP
from kepsvgp.methods.two_steps import TwoSteps
from kepsvgp.ops.device import find_device
from kepsvgp.runs.folder import RunFolder
from kepsvgp.training.loop import SecondStep

EXAMPLES = 256
SAMPLES = 32


class MatchedNoiseConfig(Section):
    """Where the size of the noise comes from.

    Attributes:
        kep_run: Run folder of the KEP-SVGP; None trains one first, beside the run.
    """

    kep_run: Annotated[Path | None, Optional] = None


class MatchedNoise(TwoSteps):
    """Softmax attention with the noise of a KEP-SVGP in its last layers."""

    name, title = "matched_noise", "Softmax with KEP-SVGP's noise"
    section = MatchedNoiseConfig
    first, beside = KEP, "kep"
    timed_as = "msp"

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """Softmax attention with noise, of size zero before it is measured."""
        return NoisyAttention(softmax_attention(config), config.dim)

    def normalised(self, config: RunConfig) -> RunConfig:
        """What concerns the KEP-SVGP matters to it as well."""
        own, kep = super().normalised(config), KEP().normalised(config)
        model = own.model.model_copy(update={"kep": KEP().settings(kep.model)})
        return own.model_copy(update={"model": model})

    def second_step(self, config: RunConfig, benchmark: Benchmark, first: RunFolder) -> SecondStep:
        """The size of the noise, from a part of the validation set."""
        some = benchmark.val.subset(torch.arange(min(EXAMPLES, len(benchmark.val))))
        model = first.model().to(find_device(config.train.device, is_binding=False))
        scales = noise_scales(model, batches(some, 64, bucket=True), seed=config.seed)
        initial = {f"{name}.noise_scale": scale for name, scale in scales.items()}
        return SecondStep(config.train, initial)


@torch.no_grad()
def noise_scales(
    model: nn.Module, batches: Iterable[Any], *, seed: int = 0
) -> dict[str, Float[Tensor, " dim"]]:
    """Standard deviation of what each KEP layer draws, a mean over real tokens, by channel."""
    layers = kep_layers(model)
    sums: dict[nn.Module, Tensor] = {}
    counts = dict.fromkeys(layers, 0)

    def watch(layer: KEPAttention, args: Any, kwargs: Any, out: Tensor) -> None:
        if kwargs.get("num_samples") is not None:
            return
        x, mask = args[0], args[1] if len(args) > 1 else kwargs.get("mask")
        generator = torch.Generator().manual_seed(seed)
        drawn = layer(x, mask, num_samples=SAMPLES, generator=generator)
        variance = drawn.var(dim=0)
        variance = variance.flatten(0, 1) if mask is None else variance[mask]
        sums[layer] = sums.get(layer, 0) + variance.sum(dim=0)
        counts[layer] += len(variance)

    handles = [layer.register_forward_hook(watch, with_kwargs=True) for layer in layers]
    device = layers[0].v_mean.device
    for inputs, _, _ in batches:
        call(model.eval(), to_device(inputs, device))
    for handle in handles:
        handle.remove()
    names = {module: name for name, module in model.named_modules()}
    return {names[layer]: (sums[layer] / counts[layer]).sqrt() for layer in layers}
