import json

import pytest
from rich.console import Console

from kepsvgp.config.file import load_config
from kepsvgp.paper import demo

FEW = ("data.train_limit=64", "data.test_limit=40", "data.val_limit=40", "train.epochs=1")


@pytest.mark.filterwarnings("ignore:.*undefined")
def test_demo_measures_every_method_on_every_kind_of_data_once(
    tmp_path, monkeypatch, capsys
) -> None:
    """In its shortest form: all of its steps, hardly any training."""
    monkeypatch.setattr(demo, "load_config", lambda name, o: load_config(name, [*o, *FEW]))
    monkeypatch.setattr(demo, "NUM_MEMBERS", 2)
    first = demo.run_demo(tmp_path, Console(stderr=True))

    for splits in first.results.values():
        assert {name.partition("/")[0] for name in splits} == {"val", "test", "shift", "ood"}
        assert len(splits) == 18
    assert list(first.results) == list(demo.METHODS)
    printed = capsys.readouterr().out
    assert all(title in printed for title in ("MSP", "KEP-SVGP ensemble"))

    weights = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")}
    second = demo.run_demo(tmp_path, Console(stderr=True))
    # as text: what is undefined is not even equal to itself
    assert json.dumps(second.results, sort_keys=True) == json.dumps(first.results, sort_keys=True)
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == weights
