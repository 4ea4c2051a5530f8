"""What earlier versions saved loads, and says the same.

`tests/golden/format1` has the text files of a run and of a converted model that 0.1.0 wrote. Their
weights are written here, by a writer of its own, from names, shapes and a formula; what the
models then say is on record. None of it is ever written again: a later format gets a folder of
its own, and this one must still load or be refused by name.
"""

import hashlib
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

FOLDER = Path(__file__).parents[1] / "golden" / "format1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def blake(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write_tensors(path: Path, shapes: dict[str, list[int]]) -> str:
    """A safetensors file as version 0.1.0 wrote it, byte by byte; gives its checksum."""
    header: dict[str, Any] = {"__metadata__": {"kepsvgp_checksum": "0" * 32, "kepsvgp_format": "1"}}
    data = b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = [0.6 * math.sin(number + len(name)) for number in range(count)]
        start, data = len(data), data + struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    content = struct.pack("<Q", len(text)) + text + data
    total = blake(content)
    path.write_bytes(content.replace(b"0" * 32, total.encode(), 1))
    return total


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """A JSON file with its checksum."""
    plain = {key: value for key, value in content.items() if key != "checksum"}
    seal = blake(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(plain | {"checksum": seal}))


@torch.no_grad()
def said(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return model.eval()(x)


def test_the_current_format_is_on_record() -> None:
    assert FOLDER.name == f"format{FORMAT}"


def test_run_of_version_0_1_is_refused(tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FOLDER / "run", folder)

    with pytest.raises(UserError, match=r"run\.json"):
        RunFolder(folder).config()


def test_converted_model_of_version_0_1_loads_and_says_the_same(tmp_path) -> None:
    folder = tmp_path / "converted"
    shutil.copytree(FOLDER / "converted", folder)
    total = write_tensors(folder / "model.safetensors", EXPECTED["converted"]["shapes"])
    record = json.loads((folder / "kepsvgp.json").read_text())
    write_sealed(folder / "kepsvgp.json", record | {"weights": total})

    x = torch.linspace(-1, 1, 2 * 3 * 8).reshape(2, 3, 8)
    found = said(load_pretrained(folder), x)

    output = torch.tensor(EXPECTED["converted"]["output"])
    torch.testing.assert_close(found, output, rtol=0, atol=1e-5)
    assert Abstainer.load(folder).max_risk == 0.9


@pytest.mark.parametrize("name", ["merge", "noise", "branches", "projection", "num_landmarks"])
def test_converted_model_says_all_its_settings(name) -> None:
    record = json.loads((FOLDER / "converted" / "kepsvgp.json").read_text())

    assert name in record["layers"]["layers.0.self_attn"]["settings"]
