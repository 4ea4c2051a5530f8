"""What earlier versions saved loads and says the same, or is refused by name.

`tests/golden/format2` has the text files of a run and of a converted model. Their weights are
written here, by a writer of its own, from names, shapes and a formula; what the models then say
is on record. None of it is ever written again: a later format gets a folder of its own, and this
one must still load or be refused by name, as that of format 1, which version 0.1.0 wrote, is.
"""

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from kepsvgp import Abstainer, load_pretrained
from kepsvgp.errors import UserError
from kepsvgp.files import FORMAT
from kepsvgp.runs.folder import RunFolder

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "format2"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def write_tensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file, byte by byte."""
    header: dict[str, Any] = {}
    data = b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = [0.6 * math.sin(number + len(name)) for number in range(count)]
        start, data = len(data), data + struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@torch.no_grad()
def said(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return model.eval()(x)


def test_the_current_format_is_on_record() -> None:
    assert FOLDER.name == f"format{FORMAT}"


def test_run_loads_and_says_the_same(tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FOLDER / "run", folder)
    write_tensors(folder / "model.safetensors", EXPECTED["run"]["shapes"])
    run = RunFolder(folder)

    assert run.config().model.kep.rank == 2
    assert [entry["epoch"] for entry in run.history()] == [1, 2]
    assert run.metrics()["last"]["kep"]["test"]["accuracy"] == EXPECTED["run"]["accuracy"]
    assert run.is_finished()
    images = torch.linspace(-1, 1, 2 * 8 * 8).reshape(2, 1, 8, 8)
    found = said(run.model(), images)
    # other versions of torch may sum in another order
    torch.testing.assert_close(found, torch.tensor(EXPECTED["run"]["output"]), rtol=0, atol=1e-5)


def test_converted_model_loads_and_says_the_same(tmp_path) -> None:
    folder = tmp_path / "converted"
    shutil.copytree(FOLDER / "converted", folder)
    write_tensors(folder / "model.safetensors", EXPECTED["converted"]["shapes"])

    x = torch.linspace(-1, 1, 2 * 3 * 8).reshape(2, 3, 8)
    found = said(load_pretrained(folder), x)

    output = torch.tensor(EXPECTED["converted"]["output"])
    torch.testing.assert_close(found, output, rtol=0, atol=1e-5)
    assert Abstainer.load(folder).max_risk == 0.9


@pytest.mark.parametrize(
    "read", [lambda f: RunFolder(f / "run").config(), lambda f: load_pretrained(f / "converted")]
)
def test_format_1_is_refused_with_what_to_do(read) -> None:
    with pytest.raises(UserError, match=r"manifest\.json.*version 0\.1: make it again"):
        read(GOLDEN / "format1")
