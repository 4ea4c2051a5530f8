"""Benchmarks of images and texts: loaders, splits, shifts and batches."""

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
    match config.name:
        case "digits":
            from kepsvgp.data.sets import digits

            return digits.load(config)
        case "cifar10" | "cifar100":
            from kepsvgp.data.sets import cifar

            layout = cifar.CIFAR10 if config.name == "cifar10" else cifar.CIFAR100
            return cifar.load(config, layout)
        case "imdb":
            from kepsvgp.data.sets import imdb

            return imdb.load(config)
        case "cola":
            from kepsvgp.data.sets import cola

            return cola.load(config)
        case "images":
            from kepsvgp.data.sets import images

            return images.load(config)
        case "csv":
            from kepsvgp.data.sets import table

            return table.load(config)
