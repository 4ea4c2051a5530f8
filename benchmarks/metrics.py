"""What the metrics cost, in sorts of as many numbers as there are examples."""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.timing import Contest, Options, compare
from kepsvgp import metrics


def contests(options: Options) -> Iterator[Contest]:
    """The paper's metrics and all of them, in float32 on one thread, against `torch.sort`.

    NumPy's sorts stand beside it, as vector instructions make them much faster.
    """
    num_examples = 10_000 if options.small else 1_000_000
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(num_examples, 10, generator=generator).mul(2).softmax(dim=-1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    numbers = torch.rand(num_examples, generator=generator)
    half = num_examples // 2

    def everything() -> None:
        metrics.all_metrics(probs, labels)
        metrics.ood_metrics(numbers[:half], numbers[half:], positive="out")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = compare(
            {
                "torch.sort": lambda: torch.sort(numbers),
                "numpy.sort": lambda: np.sort(numbers.numpy()),
                "numpy.argsort": lambda: np.argsort(numbers.numpy()),
                "the paper's metrics": lambda: metrics.all_metrics(probs, labels),
                "all metrics": everything,
            },
            baseline="torch.sort",
            rounds=min(options.rounds, 5),
        )
    finally:
        torch.set_num_threads(threads)
    yield Contest(f"metrics of {num_examples:,} examples", "torch.sort", results)
