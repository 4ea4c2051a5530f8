"""What the metrics cost, in sorts of as many numbers as there are examples.

Everything runs on one thread and is timed by the processor time of this process, in turns, so
that other work on the machine disturbs the ratios little; of each the fastest turn counts.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from kepsvgp import metrics


def measure(
    num_examples: int = 1_000_000, num_classes: int = 10, *, repeats: int = 5, seed: int = 0
) -> dict[str, float]:
    """Seconds of a sort and of the metrics in float32, and their ratios.

    `paper` is `all_metrics`; `everything` adds class-wise and adaptive ECE and the three OOD
    metrics of as many scores. The sort is `torch.sort`; `numpy_sort` is there for comparison,
    where vector instructions make it much faster.
    """
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(num_examples, num_classes, generator=generator).mul(2).softmax(dim=-1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    numbers = torch.rand(num_examples, generator=generator)
    half = num_examples // 2

    def everything() -> None:
        metrics.all_metrics(probs, labels)
        metrics.ece_classwise(probs, labels)
        metrics.ece_adaptive(probs, labels)
        metrics.ood_metrics(numbers[:half], numbers[half:], positive="out")

    seconds = _fastest(
        {
            "sort": lambda: torch.sort(numbers),
            "numpy_sort": lambda: np.sort(numbers.numpy()),
            "numpy_argsort": lambda: np.argsort(numbers.numpy()),
            "paper": lambda: metrics.all_metrics(probs, labels),
            "everything": everything,
        },
        repeats,
    )
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "paper_in_sorts": seconds["paper"] / seconds["sort"],
        "everything_in_sorts": seconds["everything"] / seconds["sort"],
    }


def _fastest(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        turns = [{name: _seconds(task) for name, task in tasks.items()} for _ in range(repeats)]
    finally:
        torch.set_num_threads(threads)
    return {name: min(turn[name] for turn in turns) for name in tasks}


def _seconds(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start
