"""What a step of the loop is: its seed, its learning rate, and its share of the examples."""

import hashlib
import math
from collections.abc import Iterator

from kepsvgp.config.sections import TrainConfig
from kepsvgp.data import Batch
from kepsvgp.errors import UserError


def learning_rate(step: int, steps_per_epoch: int, config: TrainConfig) -> float:
    """Linear growth over the warm-up, then a fall to `min_lr`, by default until the last step."""
    warmup = round(config.warmup * steps_per_epoch)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    steps = config.epochs * steps_per_epoch - 1 - warmup
    if config.decay_epochs is not None:
        steps = config.decay_epochs * steps_per_epoch
    done = min(1.0, (step - warmup) / max(1, steps))
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_lr + (config.lr - config.min_lr) * left


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, such as the noise of one step, that shares nothing with others."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def micro_batches(batch: Batch, parts: int) -> Iterator[Batch]:
    """A batch in equal parts."""
    size = len(batch.labels) // parts
    for start in range(0, parts * size, size):
        rows = slice(start, start + size)
        inputs = batch.inputs
        if isinstance(inputs, dict):
            some = {name: value[rows] for name, value in inputs.items()}
        else:
            some = inputs[rows]
        yield Batch(some, batch.labels[rows], batch.index[rows])


def global_batch_size(config: TrainConfig, num_train: int, world: int) -> int:
    """Examples of one step over all processes, at most all there are."""
    pieces = world * config.accumulate
    if config.batch_size % pieces:
        raise UserError(
            f"train.batch_size must be divisible by {world} processes × train.accumulate="
            f"{config.accumulate}; got {config.batch_size}."
        )
    size = min(config.batch_size, num_train // pieces * pieces)
    if size == 0:
        raise UserError(f"the training set must have at least {pieces} examples; got {num_train}.")
    return size
