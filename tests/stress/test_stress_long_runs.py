"""Thousands of steps and predictions: memory, objects and open files stay where they were."""

import gc
import statistics

import torch
from breaking import many, open_files, resident_megabytes
from commands import small
from rich.console import Console
from torch import nn

from kepsvgp import KEPAttention, loss, predict
from kepsvgp.data import load_benchmark
from kepsvgp.training.loop import train

STEPS = many(120, 5_000)
PREDICTIONS = many(60, 1_000)
LOOKS = many(6, 15)


class Watch:
    """Samples of memory, Python objects, tensors and open files over a long time."""

    def __init__(self) -> None:
        self.memory: list[float] = []
        self.objects: list[int] = []
        self.tensors: list[int] = []
        self.files: list[int] = []

    def look(self) -> None:
        gc.collect()
        found = gc.get_objects()
        self.objects.append(len(found))
        self.tensors.append(sum(1 for thing in found if type(thing) is torch.Tensor))
        del found
        self.memory.append(resident_megabytes())
        self.files.append(open_files())

    def assert_flat(self) -> None:
        """Nothing grows after the first third, in which caches fill."""
        third = len(self.memory) // 3
        for name in ("objects", "tensors", "files"):
            values = getattr(self, name)
            middle, last = values[third], statistics.median(values[-third:])
            # what a test run itself piles up; one object a step would be far more
            assert last - middle <= 100, (name, values)
        early = statistics.median(self.memory[third : 2 * third])
        late = statistics.median(self.memory[-third:])
        assert late - early < 8, self.memory


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = KEPAttention(16, 4, rank=4), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(dim=-2))


def test_training_steps_keep_nothing(tried) -> None:
    torch.manual_seed(0)
    model, watch = Classifier(), Watch()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = torch.randn(4, 6, 16)
        terms = loss(model(x), torch.arange(4) % 3, model, num_train=100, ksvd_weight=1.0)
        terms.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (STEPS // LOOKS) == 0:
            watch.look()
    watch.assert_flat()
    # no graph outlives its step
    assert not model.layer._left_behind
    tried("training steps with flat memory, objects and open files", STEPS)


def test_predictions_keep_nothing(tried) -> None:
    torch.manual_seed(0)
    model, watch = Classifier(), Watch()
    for number in range(PREDICTIONS):
        prediction = predict(model, torch.randn(4, 6, 16), num_samples=3, keep_logits=True)
        assert not prediction.probs.requires_grad
        if number % (PREDICTIONS // LOOKS) == 0:
            watch.look()
    watch.assert_flat()
    tried("predictions with flat memory, objects and open files", PREDICTIONS)


def test_the_training_loop_keeps_nothing(tmp_path, tried) -> None:
    epochs = many(6, 30)
    sizes = ("data.train_limit=40", "data.val_limit=20", "data.test_limit=20")
    steps = (f"train.epochs={epochs}", "train.batch_size=2", "train.save_steps=5")
    config = small("data.corruptions=none", *sizes, *steps)
    benchmark, watch = load_benchmark(config.data), Watch()

    class Looking(Console):
        """Looks whenever an epoch is reported."""

        def print(self, *_: object, **__: object) -> None:
            watch.look()

    train(config, benchmark, tmp_path / "run", console=Looking(force_terminal=False))
    assert len(watch.memory) >= epochs
    third = len(watch.files) // 3
    assert max(watch.files[third:]) - min(watch.files[third:]) <= 3, watch.files
    tensors = watch.tensors[third:]
    assert max(tensors) - min(tensors) <= 20, watch.tensors
    # the history grows by an entry an epoch, of some forty objects
    objects = watch.objects[third:]
    assert objects[-1] - objects[0] < 100 * len(objects), watch.objects
    tried("steps of the whole loop with flat tensors and open files", epochs * 20)
