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
from kepsvgp.inference.calls import call
from kepsvgp.inference.linear import kep_layers
from kepsvgp.methods.base import Method, softmax_attention
from kepsvgp.methods.kep import KEP
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.record import make_record
from kepsvgp.training.loop import SecondStep, train

EXAMPLES = 256
SAMPLES = 32


class MatchedNoiseConfig(Section):
    """Where the size of the noise comes from.

    Attributes:
        kep_run: Run folder of the KEP-SVGP; None trains one first, beside the run.
    """

    kep_run: Annotated[Path | None, Optional] = None


class MatchedNoise(Method):
    """Softmax attention with the noise of a KEP-SVGP in its last layers."""

    name, title = "matched_noise", "Softmax with KEP-SVGP's noise"
    section = MatchedNoiseConfig
    timed_as = "msp"

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """Softmax attention with noise, of size zero before it is measured."""
        return NoisyAttention(softmax_attention(config), config.dim)

    def normalised(self, config: RunConfig) -> RunConfig:
        """What concerns the KEP-SVGP matters to it as well."""
        own, kep = super().normalised(config), KEP().normalised(config)
        model = own.model.model_copy(update={"kep": KEP().settings(kep.model)})
        return own.model_copy(update={"model": model})

    def first_step(self, config: RunConfig) -> RunConfig | None:
        """The KEP-SVGP, unless one is given."""
        if self.settings(config.model).kep_run is not None:
            return None
        return config.of_method("kep")

    def after(self, config: RunConfig, first: Path) -> RunConfig:
        """The same with the KEP-SVGP that was trained."""
        model = config.model.model_copy(update={self.name: MatchedNoiseConfig(kep_run=first)})
        return config.model_copy(update={"model": model})

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains both; the first is a run of its own, `<out>-kep`, if it is not given."""
        resume = options.get("resume", False)
        RunFolder(out).check_place(config, make_record(benchmark), resume=resume)
        first, given = self.first_step(config), self.settings(config.model).kep_run
        if first is not None:
            console = options.get("console")
            kep = KEP().train(first, benchmark, Path(f"{out}-kep"), resume=True, console=console)
        else:
            kep = RunFolder(given)
            KEP().check_runs([kep])
        some = benchmark.val.subset(torch.arange(min(EXAMPLES, len(benchmark.val))))
        scales = noise_scales(kep.model(), batches(some, 64, bucket=True), seed=config.seed)
        initial = {f"{name}.noise_scale": scale for name, scale in scales.items()}
        return train(config, benchmark, out, **options, second=SecondStep(config.train, initial))


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
        real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        variance = drawn.var(dim=0)[real]
        sums[layer] = sums.get(layer, 0) + variance.sum(dim=0)
        counts[layer] += len(variance)

    handles = [layer.register_forward_hook(watch, with_kwargs=True) for layer in layers]
    for inputs, _, _ in batches:
        call(model.eval(), inputs)
    for handle in handles:
        handle.remove()
    names = {module: name for name, module in model.named_modules()}
    return {names[layer]: (sums[layer] / counts[layer]).sqrt() for layer in layers}
