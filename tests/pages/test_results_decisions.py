"""What docs/decisions.md says of trials on CoLA is what the files in `results/` say."""

import json

import evidence
import page
from pages.told import RESULTS, ROOT, means


def test_decisions_tell_what_boldness_costs() -> None:
    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text().split())
    told = "those that call more than a fifth of the sentences unacceptable have the higher MCC"
    assert f"{told} and an ECE above 9, the others an ECE below 8" in decisions
    screen = evidence.table("cola-folds/screen")
    assert sum(screen["folds"].values()) == 3079
    assert "3,079 sentences, with one seed" in decisions
    assert round(10 * screen["labels"][0]) == 3
    for rule in ("score", "last"):
        found = screen["rules"][rule]
        bold, calm = {}, {}
        for arm, (values, called) in {
            arm: (values, found["predicted"][arm][0]) for arm, values in found["results"].items()
        }.items():
            side = bold if called > 0.2 else calm
            side[arm] = values["mcc"][0], values["ece"][0]
        del bold["… learning rate 0.002"]
        assert min(mcc for mcc, _ in bold.values()) > max(mcc for mcc, _ in calm.values())
        assert min(ece for _, ece in bold.values()) > 0.09
        assert max(ece for _, ece in calm.values()) < 0.08
        softmax = found["results"]["softmax"]
        last, lr = (
            found["results"][f"… {name}"]
            for name in ("in the last layer alone", "learning rate 0.002")
        )
        assert 0 < softmax["mcc"][0] - last["mcc"][0] < 0.02
        assert last["ece"] > softmax["ece"]
        assert lr["mcc"] < softmax["mcc"]
        longer = evidence.table("cola-folds/screen25")["rules"][rule]["differences"]
        (longer,) = longer.values()
        assert longer["ece"]["high"] < 0
        assert longer["nll"]["high"] < 0
        assert (longer["aurc"]["difference"] < 0) == (rule == "score")
        assert longer["mcc"]["difference"] < 0
    by_score, by_nll, last = (
        screen["rules"][rule]["differences"] for rule in ("score", "nll", "last")
    )
    half = by_score["softmax, dropout 0.5 − softmax"]
    assert half["aurc"]["high"] < 0 < half["ece"]["low"]
    assert by_score["… in the last layer alone − softmax"]["ece"]["low"] > 0
    assert last["… in the last layer alone − softmax"]["nll"]["low"] > 0
    authors = by_nll["KEP-SVGP, authors' choices − softmax"]["mcc"]
    assert authors["low"] > 0
    assert f"were {100 * authors['difference']:.1f} ahead in MCC" in decisions


def test_decisions_tell_what_reading_features_alone_gave() -> None:
    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text().split())
    assert "Without the embeddings softmax overfits less, and the KEP layers" in decisions
    lines = [line.strip("| ").split(" | ") for line in page.read().splitlines()[2:]]
    embedded, alone, _, kep = ([float(cell) for cell in cells[1:]] for cells in lines)
    assert all(ours < theirs for ours, theirs in zip(alone[1:], embedded[1:], strict=True))
    assert f"level with softmax ({kep[0]:.3f} against {alone[0]:.3f})" in decisions
    for column in (1, 2, 3):
        assert kep[column] == min(float(cells[1 + column]) for cells in lines)


def test_decisions_tell_what_won_on_cola() -> None:
    path = "cola-small/tables/defaults-cola-small"
    rows = {row["key"] for row in evidence.table(path)["rows"]} - {"msp"}
    found = {row: means(path, row) for row in rows}
    for metric, place in (("aurc", 0), ("nll", 0), ("mcc", 1), ("fpr95", 1), ("brier", 1)):
        order = sorted(rows, key=lambda row: found[row][metric], reverse=metric == "mcc")
        assert order[place] == "authors"
    assert found["dual"]["nll"] < found["landmark"]["nll"]
    digits = "defaults/tables/defaults-digits-small"
    assert means(digits, "dual")["nll"] < means(digits, "landmark")["nll"]
    softmax = means(path, "msp")
    assert softmax["mcc"] > max(found[row]["mcc"] for row in rows)
    for metric in ("ece", "nll", "brier"):
        assert softmax[metric] < min(found[row][metric] for row in rows)
    # what the two data sets contradict each other on
    for change in ("token", "whole_kl"):
        gain = [
            means(data, change)["aurc"] < means(data, "landmark")["aurc"] for data in (path, digits)
        ]
        assert gain[0] != gain[1]


def test_decisions_tell_what_weight_decay_gave() -> None:
    def after_twenty(run: str) -> dict[str, float]:
        lines = (RESULTS / run / "history.jsonl").read_text().splitlines()
        return json.loads(lines[19])["val"]

    softmax = [
        after_twenty(run)["nll"]
        for run in ("trials50/softmax-decay5e-5", "cola/runs/cola-msp-s0-76122b1af2")
    ]
    kep = [
        after_twenty(run)
        for run in ("trials50/decay3e-4", "trials50/decay5e-5", "trials50/authors")
    ]
    text = (page.ROOT / "docs" / "decisions.md").read_text()
    assert "softmax has an NLL of {:.3f} with it and {:.3f} without".format(*softmax) in text
    assert f"KEP {kep[1]['nll']:.3f} and {kep[2]['nll']:.3f}" in text
    assert kep[0]["nll"] < kep[1]["nll"]
    assert kep[0]["mcc"] < kep[1]["mcc"]


def test_decisions_tell_what_denormals_cost() -> None:
    run = RESULTS / "cola" / "runs" / "cola-msp-s0-76122b1af2"
    lines = (run / "history.jsonl").read_text().splitlines()
    before, after = (json.loads(line)["seconds"] for line in lines[37:39])
    text = " ".join((ROOT / "docs" / "decisions.md").read_text().split())
    assert f"at its 39th epoch: {before:.0f} s before, {after:.0f} s after" in text
