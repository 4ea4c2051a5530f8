import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call
from serving.models import picture, text_folder, tokenizer
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from torch.testing import assert_close

from kepsvgp import Abstainer, Prediction, load_pretrained, predict
from kepsvgp.errors import UserError
from kepsvgp.metrics import all_metrics, aurc
from kepsvgp.report import write_report
from kepsvgp.serving.tested import as_tested, measured, open_tested, read_tested


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, names of the true classes, and names of the columns, of scikit-learn."""
    x, y = load_iris(return_X_y=True)
    names = load_iris().target_names[y]
    model = LogisticRegression(C=0.01, max_iter=500).fit(x[::2], names[::2])
    return model.predict_proba(x[1::2]), names[1::2], model.classes_


def test_metrics_from_arrays_are_those_of_scikit_learn(iris) -> None:
    probs, labels, classes = iris

    prediction = Prediction.from_arrays(probs, labels, classes=classes)

    found = prediction.metrics()
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, classes[probs.argmax(1)]))
    assert found["nll"] == pytest.approx(log_loss(labels, probs, labels=classes))
    assert_close(prediction.epistemic, torch.zeros(len(labels), dtype=torch.float64))
    assert Abstainer.fit(prediction, max_risk=0.4).size == len(labels)


def test_one_probability_is_that_of_the_second_class() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    probs = LogisticRegression(max_iter=5000).fit(x, y).predict_proba(x)

    one = Prediction.from_arrays(probs[:, 1].tolist(), y.astype(bool))

    assert_close(one.probs, torch.from_numpy(probs))
    assert one.metrics() == pytest.approx(all_metrics(probs, y))


@pytest.mark.parametrize(
    ("probs", "labels", "classes", "says"),
    [
        ([[2.0, 3.0]], [0], None, "softmax"),
        ([[0.4, 0.6]], [2], None, "0 … 1"),
        ([[0.4, 0.6]], ["cat"], None, "classes=model.classes_"),
        ([[0.4, 0.6]], ["cat"], ["dog", "cow"], "got 'cat'"),
        ([[0.4, 0.6]], [0, 1], None, "1 rows"),
        ([[0.4, 0.6]], [0], ["a", "b", "c"], "2 names"),
        ([[float("nan"), 0.6]], [0], None, "finite"),
        ([[0.4, 0.6], [1.0]], [0, 1], None, "array of numbers"),
    ],
)
def test_arrays_that_are_no_prediction_are_refused(probs, labels, classes, says) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        Prediction.from_arrays(probs, labels, classes=classes)


def written(path: Path, iris, *, numbers: bool = False) -> Path:
    """The predictions of the fixture as a file of the kind that the path says."""
    probs, names, classes = iris
    labels = np.searchsorted(classes, names) if numbers else names
    texts, scores = [f"flower {i}, cut" for i in range(len(probs))], probs.max(axis=1) ** 2
    groups = ["odd" if i % 2 else "even" for i in range(len(probs))]
    if path.suffix == ".npz":
        np.savez(path, probs=probs, labels=labels, classes=classes, texts=texts, groups=groups,
                 scores=scores)  # fmt: skip
        return path
    rows = [
        {"text": text, "label": str(label), "group": group, "score": score}
        | {f"prob_{name}": value for name, value in zip(classes, values, strict=True)}
        for text, label, group, score, values in zip(
            texts, labels, groups, scores.tolist(), probs.tolist(), strict=True
        )
    ]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    lines = [",".join(rows[0])]
    lines += [",".join(f'"{value}"' for value in row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "npz"])
def test_files_of_predictions_say_the_same(kind, numbers, iris, tmp_path) -> None:
    probs, labels, classes = iris
    expected = Prediction.from_arrays(probs, labels, classes=classes)

    found = read_tested(written(tmp_path / f"p.{kind}", iris, numbers=numbers))

    assert_close(found.prediction.probs, expected.probs)
    assert torch.equal(found.labels, expected.targets)
    assert found.classes == tuple(classes)
    assert found.texts is not None
    assert found.texts[1] == "flower 1, cut"
    parts = measured(found)
    assert parts["test"] == pytest.approx(expected.metrics())
    even = torch.arange(0, len(probs), 2)
    assert parts["group/even"]["nll"] == pytest.approx(expected[even].metrics()["nll"])
    # a growing function of the confidence ranks alike
    right = expected.predicted == expected.targets
    assert parts["score"]["aurc"] == pytest.approx(aurc(expected.confidence, right))


def test_saved_predictions_come_back(iris, tmp_path) -> None:
    given = read_tested(written(tmp_path / "p.csv", iris))

    given.save(tmp_path / "again.npz")
    again = read_tested(tmp_path / "again.npz")

    assert torch.equal(again.prediction.probs, given.prediction.probs)
    assert torch.equal(again.labels, given.labels)
    assert (again.classes, again.texts, again.groups) == (given.classes, given.texts, given.groups)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.csv", "label,p\n1,0.5\n", "prob_CLASS"),
        ("p.csv", "label,prob\n1,much\n", "row 1 must have a number"),
        ("p.csv", "label,prob\n1,\n", "row 1: it has no prob"),
        ("p.csv", "name,prob\n1,0.5\n", "--label-column"),
        ("p.csv", "label,prob\n", "0 rows"),
        ("p.csv", "", "label"),
        ("p.csv", "label,prob\n2,0.5\n", "among the classes 0, 1"),
        ("p.jsonl", '{"label": 1, "probs": [0.5, 0.5]}\n[', "line 2 must be JSON"),
        ("p.jsonl", "[" * 100_000, "line 1 must be JSON"),
        ("p.jsonl", "3\n", "JSON object"),
        ("p.jsonl", '{"label": 1, "probs": 3}\n', "a list as probs"),
        ("p.csv", "label,prob_a,prob_b\na,nan,1\n", "finite"),
        ("p.csv", "label,prob_a,prob_b\na,0.2,0.2\n", "sum to 1"),
        ("p.npz", "not a zip", "NPZ"),
        ("p.txt", "", "ends otherwise"),
    ],
)
def test_files_that_hold_no_predictions_are_refused(name, content, says, tmp_path) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(UserError, match=re.escape(says)):
        read_tested(tmp_path / name)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"probs": np.array([{"a": 1}]), "labels": [0]}, "plain arrays"),
        ({"probs": [["a", "b"]], "labels": [0]}, "probs must be an array of numbers"),
        ({"probs": 0.5, "labels": 0}, "examples × classes"),
        ({"probs": np.zeros((0, 2)), "labels": []}, "at least one of each"),
        ({"probs": [[0.4, 0.6]], "labels": [0], "classes": ["a", "a"]}, "different names"),
        ({"probs": [[0.4, 0.6]], "labels": [0], "scores": ["high"]}, "scores must be an array"),
        ({"probs": [[0.4, 0.6]], "labels": [1], "groups": ["a", "b"]}, "groups must be one for"),
        ({"p": [0.5]}, "probs and labels; got p"),
    ],
)
def test_arrays_in_a_file_that_are_no_predictions_are_refused(arrays, says, tmp_path) -> None:
    np.savez(tmp_path / "p.npz", **arrays)

    with pytest.raises(UserError, match=re.escape(says)):
        read_tested(tmp_path / "p.npz")


def test_report_of_any_model(iris, tmp_path, capsys) -> None:
    page = tmp_path / "report.html"

    assert call("report", written(tmp_path / "forest.csv", iris), "--out", page) == 0

    html = page.read_text(encoding="utf-8")
    accuracy = 100 * read_tested(tmp_path / "forest.csv").prediction.metrics()["accuracy"]
    assert f"{accuracy:.2f}" in html
    assert "Group even, 38 examples" in html
    data = json.loads(html.split('id="report-data">')[1].split("</script>")[0])
    (benchmark,) = data["benchmarks"]
    assert benchmark["classes"] == ["setosa", "versicolor", "virginica"]
    assert "flower 1, cut" in benchmark["shown"]["texts"]
    assert benchmark["trainings"] == []


def test_report_in_two_lines(iris, tmp_path) -> None:
    probs, labels, classes = iris
    prediction = Prediction.from_arrays(probs, labels, classes=classes)
    other = Prediction.from_arrays(np.full_like(probs, 1 / 3), prediction.targets)
    elsewhere = Prediction.from_arrays([[0.3, 0.7]] * 4, [0, 1, 1, 1])

    page = write_report({"a": prediction, "b": other, "c": elsewhere}, tmp_path / "iris.html")

    html = page.read_text(encoding="utf-8")
    assert html.count('data-model="a"') >= 1
    # the third was asked about other examples
    assert "iris (2)" in html


def test_evaluate_and_compare_files(iris, tmp_path, capsys) -> None:
    first = written(tmp_path / "first.csv", iris)
    probs, labels, classes = iris
    sharp = probs**3 / (probs**3).sum(axis=1, keepdims=True)
    np.savez(tmp_path / "second.npz", probs=sharp, labels=labels, classes=classes)

    assert call("evaluate", first, "--max-risk", 0.4) == 0
    printed = capsys.readouterr().out
    metrics = read_tested(first).prediction.metrics()
    line = next(line for line in printed.splitlines() if line.startswith("first"))
    assert f"{metrics['nll']:.4f}" in line.split()
    assert "at most 40.0% of the answers wrong" in printed

    assert call("compare", first, tmp_path / "second.npz") == 0
    assert "minus first" in capsys.readouterr().out

    np.savez(tmp_path / "other.npz", probs=sharp[1:], labels=labels[1:], classes=classes)
    assert call("compare", first, tmp_path / "other.npz") == 2
    assert "its labels differ" in capsys.readouterr().err


TEXTS = ["good film", "the bad bad film", "unheard of", "a film", "good good film"]
LABELS = ["LABEL_1", "LABEL_0", "LABEL_2", "LABEL_1", "LABEL_1"]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("converted"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(rows))
    return tmp_path / "data.csv"


def test_converted_folder_is_evaluated_as_predict_predicts(text_model, data) -> None:
    inputs = dict(tokenizer()(TEXTS, padding=True, return_tensors="pt"))
    generator = torch.Generator().manual_seed(0)
    expected = predict(load_pretrained(text_model), inputs, generator=generator)

    found = open_tested([text_model, data])[text_model.name]

    assert_close(found.prediction.probs, expected.probs)
    assert_close(found.prediction.epistemic, expected.epistemic)
    assert found.labels.tolist() == [1, 0, 2, 1, 1]
    assert (found.prediction.num_samples, found.prediction.seed) == (10, 0)


@pytest.mark.filterwarnings("ignore::kepsvgp.metrics.UndefinedMetricWarning")
def test_commands_take_a_converted_folder(text_model, data, tmp_path, capsys) -> None:
    kept = tmp_path / "kept.npz"
    assert call("evaluate", text_model, data, "--out", kept) == 0
    assert (
        f"{open_tested([text_model, data])[text_model.name].prediction.metrics()['nll']:.4f}"
        in (capsys.readouterr().out)
    )
    assert read_tested(kept).texts == TEXTS

    page = tmp_path / "page.html"
    assert call("report", text_model, kept, data, "--out", page) == 0
    assert f'data-model="{text_model.name}"' in page.read_text(encoding="utf-8")

    assert call("compare", text_model, kept, data) == 0
    assert "+0.0000 … +0.0000" in capsys.readouterr().out

    assert call("inspect", text_model, data) == 0
    shown = capsys.readouterr().out
    assert "posterior scale" in shown
    # how a run is trained is no advice for a model that was not
    assert "model.kep" not in shown

    assert call("compare", text_model, tmp_path, data) == 2
    assert "a folder of another kind" in capsys.readouterr().err
    assert call("evaluate", text_model) == 2
    assert "followed by labelled data" in capsys.readouterr().err
    assert call("inspect", text_model) == 2
    assert "texts or images to look at" in capsys.readouterr().err


def test_unknown_label_is_named(text_model, tmp_path) -> None:
    (tmp_path / "data.csv").write_text("text,label\ngood,LABEL_9\n")

    with pytest.raises(UserError, match="got 'LABEL_9'"):
        open_tested([text_model, tmp_path / "data.csv"])
    with pytest.raises(UserError, match="must be a CSV or TSV file"):
        open_tested([text_model, tmp_path])


def test_prediction_without_labels_has_no_metrics() -> None:
    prediction = Prediction.from_arrays([[0.4, 0.6]])

    with pytest.raises(UserError, match="targets"):
        prediction.metrics()
    with pytest.raises(UserError, match="targets"):
        _ = as_tested(prediction).labels


@pytest.mark.filterwarnings("ignore::kepsvgp.metrics.UndefinedMetricWarning")
def test_converted_image_model_is_evaluated(tmp_path, monkeypatch, capsys) -> None:
    import families
    import transformers

    from kepsvgp import convert, save_pretrained

    model, _ = families.make("vit")
    convert(model, rank=3, posterior_scale=1.0)
    side = model.config.image_size
    processor = transformers.ViTImageProcessor(size={"height": side, "width": side})
    save_pretrained(model, tmp_path / "model", processor=processor)
    for number in range(4):
        picture(tmp_path / "data" / f"LABEL_{number % 2}" / f"{number}.png", (20, 30), number)

    found = open_tested([tmp_path / "model", tmp_path / "data"])["model"]

    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.prediction.probs.shape[0] == 4
    given, page = (tmp_path / "model", tmp_path / "data"), tmp_path / "page.html"
    for command in (("evaluate", *given), ("report", *given, "--out", page), ("inspect", *given)):
        assert call(*command) == 0
    assert "posterior scale" in capsys.readouterr().out
    assert page.stat().st_size > 0
