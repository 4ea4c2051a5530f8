"""Benchmarks of images and texts: loaders, splits, shifts and batches."""

from kepsvgp.config.plugins import find
from kepsvgp.config.sections import DataConfig
from kepsvgp.data.augment import CropFlip as CropFlip
from kepsvgp.data.batching import Batches as Batches
from kepsvgp.data.batching import batches as batches
from kepsvgp.data.benchmark import Benchmark as Benchmark
from kepsvgp.data.examples import Batch as Batch
from kepsvgp.data.examples import Examples as Examples
from kepsvgp.data.examples import ImageExamples as ImageExamples
from kepsvgp.data.examples import TextExamples as TextExamples


def load_benchmark(config: DataConfig) -> Benchmark:
    """The benchmark that a configuration names, split and ready to be batched."""
    return find("kepsvgp.datasets", config.name)(config)
