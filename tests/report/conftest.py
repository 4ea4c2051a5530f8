import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.folders import draw, made_inspection, write_run
from report.tab import ARGUMENTS, Tab

from kepsvgp.config.sections import DataConfig, RunConfig, TrainConfig
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.report import write_report

SHIFTS = ("fog", "gaussian_noise")


@pytest.fixture(scope="session")
def digits() -> Benchmark:
    return load_benchmark(DataConfig())


@pytest.fixture(scope="session")
def digits_runs(digits, tmp_path_factory) -> list[Path]:
    """Two seeds of KEP-SVGP and of MSP, the latter with temperature scaling on top."""
    root = tmp_path_factory.mktemp("digits")
    foreign = digits.ood["photographs"].labels

    def splits(seed: int, **ability: float):
        # what is known to a model has a novelty of 0
        novel = 2.0 if "novel" in ability else None
        parts = {
            "test": draw(digits.test.labels, seed=seed, **ability),
            "val": draw(digits.val.labels, seed=seed + 100, **ability),
            "ood/photographs": draw(foreign, seed=seed + 200, **ability | {"novel": novel}),
        }
        for number, kind in enumerate(SHIFTS):
            for severity in (1, 5):
                worse = ability | {"skill": ability["skill"] * (1 - 0.1 * severity)}
                parts[f"shift/{kind}/{severity}"] = draw(
                    digits.test.labels, seed=seed + 300 + number, **worse
                )
        return parts

    runs = []
    for seed in (0, 1):
        kep = {"kep": splits(seed, skill=3.2, sharpness=1.6, spread=0.8, novel=0.0)}
        config = RunConfig(method="kep", seed=seed, train=TrainConfig(epochs=4))
        about = {"splits": digits.split_record()}
        seen = made_inspection(5)
        folder = root / f"kep-{seed}"
        runs.append(write_run(folder, kep, config=config, inspection=seen, **about))
        msp = {
            "msp": splits(seed + 10, skill=3.0, sharpness=2.4),
            "temperature": splits(seed + 10, skill=3.0, sharpness=1.5),
        }
        config = RunConfig(method="msp", seed=seed, train=TrainConfig(epochs=4))
        notes = ["Corruptions were generated here."]
        runs.append(write_run(root / f"msp-{seed}", msp, config=config, notes=notes, **about))
    return runs


@pytest.fixture(scope="session")
def digits_page(digits_runs, tmp_path_factory) -> Path:
    return write_report(digits_runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def browser():
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser, digits_page) -> Iterator[Tab]:
    opened = Tab(browser, digits_page, viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()
