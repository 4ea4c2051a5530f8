"""What a run remembers of its data, so that its model can be built without them."""

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kepsvgp.config.sections import TEXTS, DataConfig
from kepsvgp.data import Benchmark
from kepsvgp.data.text.prepare import tool_files
from kepsvgp.models import ImageShape, InputShape, TextShape


def input_shape(benchmark: Benchmark) -> InputShape:
    """What a model must know of the inputs of a benchmark."""
    if benchmark.image_shape is not None:
        return ImageShape(*benchmark.image_shape)
    return TextShape(benchmark.vocabulary_size, *(benchmark.feature_shape or ()))


def make_record(benchmark: Benchmark, *, parameters: int = 0, epochs: int = 0) -> dict[str, Any]:
    """What a new run remembers: its data, the size of its model and how long it is to train."""
    return {
        "task": benchmark.task,
        "classes": list(benchmark.classes),
        "input": input_shape(benchmark)._asdict(),
        "splits": benchmark.split_record(),
        "notes": [note._asdict() for note in benchmark.notes],
        "parameters": parameters,
        "epochs": epochs,
        "finished": False,
    }


def shape_from_record(values: Mapping[str, int]) -> InputShape:
    """The shape that a record describes."""
    return ImageShape(**values) if "channels" in values else TextShape(**values)


def outside_files(data: DataConfig) -> dict[str, Path]:
    """The files outside a run and its data that decide what it answers, by name."""
    return {file.name: file for file in tool_files(data)} if data.name in TEXTS else {}


def library_versions() -> dict[str, str]:
    """What a run was made with."""
    names = ("kepsvgp", "torch", "accelerate", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return found | {"python": platform.python_version()}
