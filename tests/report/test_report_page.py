import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from report.folders import compared, draw, write_run
from report.hostile import CLASSES, TEXTS, text_benchmark

from kepsvgp.config.sections import RunConfig
from kepsvgp.data import load_benchmark
from kepsvgp.data.examples import Normalisation, image_examples
from kepsvgp.report import write_report
from kepsvgp.report.examples import Source, choose, choose_foreign, find_source, show
from kepsvgp.report.page import make_page, safe_json
from kepsvgp.report.payload import finite, history_series
from kepsvgp.runs.folder import RunFolder


def data_of(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', html)
    assert found is not None
    return json.loads(found[1])


def unpack(packed: dict) -> np.ndarray:
    kinds = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "f4": "<f4"}
    return np.frombuffer(base64.b64decode(packed["data"]), kinds[packed["type"]])


@pytest.fixture(scope="module")
def page(digits_page) -> str:
    return digits_page.read_text()


def test_page_numbers_equal_metrics_json(page, digits_runs) -> None:
    stored = {run: json.loads((run / "metrics.json").read_text())["score"] for run in digits_runs}
    rows = re.findall(r'<tr data-model="([^"]*)">(.*?)</tr>', page, re.DOTALL)
    methods = {"KEP-SVGP": "kep", "MSP": "msp", "Temperature scaling": "temperature"}
    checked = 0
    for label, row in rows:
        for metric, value in re.findall(r'data-metric="(\w+)" data-value="([^"]*)"', row):
            split = "ood/photographs" if metric.startswith("ood_") else "test"
            method = methods[label]
            seeds = [s[method][split][metric] for s in stored.values() if method in s]
            assert float(value) == np.mean(seeds)
            checked += 1
    # three models, seven metrics of the test set and three of the foreign one
    assert checked == 3 * (7 + 3)


def test_page_data_holds_predictions_to_the_bit(page, digits_runs) -> None:
    (bench,) = data_of(page)["benchmarks"]
    (comparison,) = compared(*digits_runs)
    for model, shown in zip(comparison.models, bench["models"], strict=True):
        for member, run in zip(model.members, shown["runs"], strict=True):
            test = member.test
            np.testing.assert_array_equal(unpack(run["test"]["confidence"]), test.confidence)
            np.testing.assert_array_equal(unpack(run["test"]["predicted"]), test.predicted)
            entropy = unpack(run["test"]["entropy"]) / 65535 * bench["entropyScale"]
            np.testing.assert_allclose(entropy, test.entropy, atol=bench["entropyScale"] / 65535)


def test_page_asks_for_nothing_outside_itself(page) -> None:
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#|data:)', page) == []
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []


def test_page_policy_names_its_scripts_and_style(page) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = policy[1].replace("&#39;", "'").replace("&#34;", '"')
    parts = re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    assert [kind for kind, _ in parts] == ["script", "style", "script"]
    for _, content in parts:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed
    assert "unsafe" not in allowed
    assert "default-src 'none'" in allowed


@pytest.mark.parametrize("text", ["</script><script>x", "<!--<script>", "\u2028\u2029", "&amp;"])
def test_safe_json_cannot_end_its_element(text) -> None:
    written = safe_json({text: [text]})

    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == {text: [text]}


def test_page_escapes_hostile_names(tmp_path) -> None:
    labels = torch.arange(len(TEXTS)) % len(CLASSES)
    notes = [TEXTS[0], "{{ 7 * 7 }}", "\x1b[2J"]
    run = write_run(
        tmp_path / "<img src=x onerror=alert(1)>",
        {"<b>kep": {"test": draw(labels, len(CLASSES))}},
        classes=CLASSES,
        notes=notes,
    )

    (comparison,) = compared(run)
    html = make_page([(comparison, Source(text_benchmark(labels).test, {}))])

    assert "<img src=x" not in html
    assert "<b>kep" not in html
    assert "<script>alert" not in html
    assert notes[1] in html
    assert data_of(html)["benchmarks"][0]["classes"] == list(CLASSES)
    assert set(data_of(html)["benchmarks"][0]["shown"]["texts"]) == {
        text for text in TEXTS if len(text) <= 12_000
    }


def test_source_is_the_data_of_the_runs_or_nothing(tmp_path) -> None:
    table = tmp_path / "reviews.csv"
    rows = [f"{'good' if k % 2 else 'bad'},text number {k}" for k in range(60)]
    table.write_text("\n".join(["label,text", *rows]))
    config = RunConfig.model_validate({"data": {"name": "csv", "path": str(table)}})
    benchmark = load_benchmark(config.data)
    labels = benchmark.test.labels
    (mine,) = compared(write_own(tmp_path / "mine", labels, config, benchmark))
    (other,) = compared(write_own(tmp_path / "other", 1 - labels, config, benchmark))
    assert find_source(mine).test is not None
    assert find_source(other).test is None

    table.write_text(table.read_text().replace("text number", "another text"))
    replaced = find_source(mine)
    table.unlink()
    missing = find_source(mine)

    assert (replaced.test, missing.test) == (None, None)
    assert replaced.notes != missing.notes


def write_own(folder, labels, config, benchmark):
    splits = {"kep": {"test": draw(labels, 2)}}
    return write_run(folder, splits, config=config, splits=benchmark.split_record())


def test_page_without_predictions_still_has_its_table(tmp_path) -> None:
    run = write_run(tmp_path / "run", {"kep": {"test": draw(torch.arange(30) % 10)}})
    (run / "predictions/score/kep/test.safetensors").unlink()

    html = write_report([run], tmp_path / "report.html").read_text()

    assert 'data-metric="accuracy"' in html
    assert "No predictions of the test set were kept" in html


def test_page_of_half_a_surrogate_pair_can_be_written(tmp_path) -> None:
    run = write_run(tmp_path / "run", {"kep": {"test": draw(torch.arange(30) % 10)}})
    record = RunFolder(run).record()
    record["notes"] = [{"text": "Broken \ud800 text", "about": None}]
    RunFolder(run).files.write_json("run.json", record)

    html = write_report([run], tmp_path / "report.html").read_text()

    assert "Broken ? text" in html


def test_page_of_five_models_and_fifty_thousand_predictions_is_small(tmp_path) -> None:
    labels = torch.arange(10_000) % 10
    methods = ("msp", "temperature", "mc_dropout", "kfllla", "svdkl")
    splits = {
        name: {
            "test": draw(labels, seed=place, spread=0.5),
            "val": draw(labels[:5000], seed=place + 9),
            "ood/svhn": draw(-torch.ones(26_032, dtype=torch.long), seed=place + 20),
        }
        for place, name in enumerate(methods)
    }
    run = write_run(tmp_path / "run", splits, config=RunConfig(method="msp"))
    (comparison,) = compared(run)
    # noise does not compress: no picture is larger
    pixels = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8)
    noise = image_examples(pixels, labels, Normalisation((0.5,) * 3, (0.5,) * 3))
    benchmark = text_benchmark(labels, task="image", test=noise, ood={"svhn": noise})

    html = make_page([(comparison, Source(benchmark.test, {}))])

    assert len(data_of(html)["benchmarks"][0]["shown"]["positions"]) > 300
    assert len(html.encode()) < 8_000_000


def test_choose_takes_the_most_confident_mistakes_first(digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    test = comparison.models[0].members[0].test
    rows = choose([test], limit=60)

    wrong = np.flatnonzero(~test.correct)
    surest = wrong[np.argsort(-test.confidence[wrong], kind="stable")]
    least = np.argsort(test.confidence, kind="stable")
    assert len(rows) == len(set(rows)) == 60
    assert set(surest[:12]) <= set(rows)
    assert set(least[:12]) <= set(rows)


def test_choose_foreign_takes_the_surest_of_each_model(digits_runs) -> None:
    (comparison,) = compared(*digits_runs)
    found = [model.members[0].answers("ood/photographs") for model in comparison.models]

    rows = choose_foreign(found, limit=30)

    for prediction in found:
        assert set(np.argsort(-prediction.confidence, kind="stable")[:8]) <= set(rows)


def test_page_shows_models_that_were_asked_about_other_foreign_examples(digits, tmp_path) -> None:
    runs = []
    for seed, size in ((0, 30), (1, 500)):
        foreign = digits.ood["photographs"].labels[:size]
        splits = {"test": draw(digits.test.labels), "ood/photographs": draw(foreign)}
        config = RunConfig(method=("kep", "msp")[seed])
        runs.append(write_run(tmp_path / str(seed), {config.method: splits}, config=config))

    assert write_report(runs, tmp_path / "page.html").exists()


def test_show_draws_the_pictures_it_was_given(digits) -> None:
    positions = [5, 0, 17]

    shown = show(digits.test, positions)

    assert shown.positions == positions
    content = base64.b64decode(shown.pictures.uri.split(",")[1])
    sprite = np.asarray(Image.open(io.BytesIO(content)))
    for place, position in enumerate(positions):
        top = place // shown.pictures.columns * 8
        left = place % shown.pictures.columns * 8
        np.testing.assert_array_equal(
            sprite[top : top + 8, left : left + 8], digits.test.raw(position)[..., 0]
        )


def test_show_keeps_within_its_bytes(digits) -> None:
    shown = show(digits.test, list(range(200)), max_bytes=3000)

    assert 0 < len(shown.positions) < 200
    assert shown.positions == list(range(len(shown.positions)))
    assert len(base64.b64decode(shown.pictures.uri.split(",")[1])) <= 3000


def test_show_cuts_long_texts_and_says_so() -> None:
    labels = torch.arange(len(TEXTS)) % len(CLASSES)
    examples = text_benchmark(labels, texts=["x" * 20_000, *TEXTS[1:]]).test

    shown = show(examples, [0, 1])

    assert shown.texts[0].startswith("x" * 12_000 + " …")
    assert "20,000 characters" in shown.texts[0]
    assert shown.texts[1] == TEXTS[1]


def test_finite_replaces_what_json_cannot_say() -> None:
    assert finite({"a": [float("nan"), 1.5, (float("inf"),)]}) == {"a": [None, 1.5, [None]]}


def test_history_series_turns_epochs_into_columns() -> None:
    history = [
        {"epoch": 1, "lr": 0.1, "train": {"nll": 2.0}, "seconds": 3.0},
        {"epoch": 2, "lr": 0.05, "train": {"nll": 1.0}, "val": {"accuracy": 0.5}},
    ]

    found = history_series(history)

    assert found["epoch"] == [1, 2]
    assert found["series"] == {
        "lr": [0.1, 0.05],
        "train.nll": [2.0, 1.0],
        "val.accuracy": [None, 0.5],
    }
