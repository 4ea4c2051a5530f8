"""Batches of examples: seeded, of similar lengths, and ready before they are asked for.

All that is random is decided when an epoch starts: the order, and one seed for the
augmentation. A thread then prepares the next batches while the model works on this one.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from kepsvgp.data.examples import Augment, Batch, Examples, ImageExamples

# how many batches are sorted by length together: more gives less padding, less gives more chance
POOL = 50


@dataclass(eq=False)
class Batches:
    """Batches over a split, a whole epoch of them each time it is iterated.

    Attributes:
        examples: The split.
        batch_size: Size of the batch over all processes.
        shuffle: A new order from `generator` in each iteration; otherwise that of the split.
        augment: Applied to images, with numbers that follow from `generator`.
        generator: Source of all that is random; it advances as an iteration starts.
        drop_last: Leave out a last batch that is not full.
        bucket: Gather texts of similar length; by default when shuffling. Without `shuffle`
            the whole split is then sorted by length, and `Batch.index` says what is where.
        part: Rank and number of processes: each takes its share of every batch.
        start: Batches of the epoch to leave out, when a run is resumed in its middle.
        prefetch: Batches prepared ahead in a thread; 0 for none.
        pin: Put them in memory that a GPU copies from without being waited for.
        waited: Seconds that the last iteration spent waiting for a batch.
    """

    examples: Examples
    batch_size: int
    _: KW_ONLY
    shuffle: bool = False
    augment: Augment | None = None
    generator: torch.Generator | None = None
    drop_last: bool = False
    bucket: bool | None = None
    part: tuple[int, int] = (0, 1)
    start: int = 0
    prefetch: int = 2
    pin: bool = False
    waited: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        rank, world = self.part
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be positive; got {self.batch_size}.")
        if not 0 <= rank < world:
            raise ValueError(
                f"part must be (rank, processes) with 0 <= rank < processes; got {self.part}."
            )
        if self.augment is not None and not isinstance(self.examples, ImageExamples):
            raise ValueError("augment is for images; got texts.")
        if self.bucket is None:
            self.bucket = self.shuffle

    def __len__(self) -> int:
        whole, rest = divmod(len(self.examples), self.batch_size)
        return max(0, whole + (rest > 0 and not self.drop_last) - self.start)

    def __iter__(self) -> Iterator[Batch]:
        self.waited = 0.0
        order = self._order()
        seed = 0
        if self.augment is not None:
            # a number and not the generator goes to the thread, or its draws would race with ours
            seed = int(torch.randint(2**62, (), generator=self.generator))
        made = self._make(order, seed)
        return self._timed(_ahead(made, self.prefetch) if self.prefetch else made)

    def _order(self) -> list[Tensor]:
        total = len(self.examples)
        order = torch.arange(total)
        if self.shuffle:
            order = torch.randperm(total, generator=self.generator)
        if self.drop_last:
            # before sorting by length, or the longest texts would be left out again and again
            order = order[: total // self.batch_size * self.batch_size]
        lengths = self.examples.lengths
        if self.bucket and lengths is not None:
            # shuffled: sorted within pools; otherwise sorted as a whole
            pools = order.split(POOL * self.batch_size) if self.shuffle else (order,)
            order = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools])
        parts = list(order.split(self.batch_size)) if len(order) > 0 else []
        if self.bucket and self.shuffle:
            shuffled = torch.randperm(len(parts), generator=self.generator)
            parts = [parts[i] for i in shuffled.tolist()]
        return parts

    def _make(self, order: list[Tensor], seed: int) -> Iterator[Batch]:
        rank, world = self.part
        random = torch.Generator().manual_seed(seed)
        for number, index in enumerate(order):
            # drawn for the whole batch, and for skipped ones, so that neither changes the rest
            noise = torch.rand(len(index), 3, generator=random) if self.augment else None
            if number < self.start:
                continue
            mine = slice(rank * len(index) // world, (rank + 1) * len(index) // world)
            index = index[mine]
            if noise is not None and isinstance(self.examples, ImageExamples):
                inputs = self.examples.inputs(index, self.augment, noise[mine])
            else:
                inputs = self.examples.inputs(index)
            batch = Batch(inputs, self.examples.labels[index], index)
            yield tree_map(Tensor.pin_memory, batch) if self.pin else batch

    def _timed(self, made: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            before = time.perf_counter()
            batch = next(made, None)
            self.waited += time.perf_counter() - before
            if batch is None:
                return
            yield batch


def _ahead(made: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """The same batches, prepared by a thread that ends when its reader does."""
    # one thread: the cores belong to the model
    pool = ThreadPoolExecutor(1, "kepsvgp-batches", torch.set_num_threads, (1,))
    ready = deque(pool.submit(next, made, None) for _ in range(depth))
    try:
        while (batch := ready.popleft().result()) is not None:
            ready.append(pool.submit(next, made, None))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


batches = Batches
