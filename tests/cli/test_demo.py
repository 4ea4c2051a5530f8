import json

import pytest
from rich.console import Console

from kepsvgp.config.file import load_config
from kepsvgp.paper import demo


@pytest.fixture
def short(monkeypatch) -> None:
    """The demo in its shortest form: all of its steps, hardly any training."""

    def config(method: str, seed: int):
        few = ["data.train_limit=64", "data.test_limit=40", "data.val_limit=40"]
        return load_config(
            "digits-small",
            [f"method={method}", f"seed={seed}", "train.epochs=2", "train.select=last", *few],
        )

    monkeypatch.setattr(demo, "demo_config", config)
    monkeypatch.setattr(demo, "SEVERITIES", (5,))
    monkeypatch.setattr(demo, "NUM_MEMBERS", 2)


@pytest.mark.filterwarnings("ignore:.*undefined")
def test_demo_measures_every_method_on_every_kind_of_data(short, tmp_path, capsys) -> None:
    rows = demo.run_demo(tmp_path, Console(stderr=True))

    titles = [row.title.strip() for row in rows]
    assert titles[0] == "softmax"
    assert titles == [
        "softmax", "+ temperature", "+ MC dropout", "× 2 ensemble",
        "KEP-SVGP", "+ temperature", "× 2 ensemble",
    ]  # fmt: skip
    for row in rows:
        assert {name.partition("/")[0] for name in row.metrics} == {"val", "test", "shift", "ood"}
        assert len(row.metrics) == 18
    printed = capsys.readouterr().out
    assert all(title in printed for title in titles)


@pytest.mark.filterwarnings("ignore:.*undefined")
def test_demo_again_trains_nothing(short, tmp_path, monkeypatch) -> None:
    first = demo.run_demo(tmp_path, Console(stderr=True))
    weights = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")}

    second = demo.run_demo(tmp_path, Console(stderr=True))

    # as text: what is undefined is not even equal to itself
    assert json.dumps(second, sort_keys=True) == json.dumps(first, sort_keys=True)
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == weights


def test_demo_s_config_is_the_shipped_one() -> None:
    softmax, kep = demo.demo_config("msp", 1), demo.demo_config("kep", 1)

    assert softmax.model_copy(update={"method": "kep"}) == kep
