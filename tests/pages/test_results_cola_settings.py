"""What docs/results-cola.md says of other settings is what the files in `results/` say."""

import json
from statistics import mean

import evidence
import page
from pages.told import RESULTS, TEXT, gains, means, metrics


def test_results_tell_what_ten_epochs_gave() -> None:
    """Calibration beyond noise under two rules; all seven, within noise, under the third."""
    found = {
        rule: gains(evidence.COLA_SMALL + suffix, "kep", "msp")
        for rule, suffix in evidence.RULES.items()
    }
    calibrated = {"ece": (True, True), "nll": (True, True), "brier": (True, True)}
    for rule in ("best validation score", "last epoch"):
        sure = {metric: gain for metric, gain in found[rule].items() if gain[1]}
        assert sure == calibrated
    assert set(found["best validation NLL"].values()) == {(True, False)}
    assert "ahead of softmax in all seven metrics, all of them within noise" in TEXT
    assert not any(sure for _, sure in gains(evidence.COLA_SMALL, "kep", "sgpa").values())
    assert "KEP-SVGP and SGPA cannot in anything" in TEXT
    rows = [row["key"] for row in evidence.table(evidence.COLA_SMALL)["rows"]]
    assert max(rows, key=lambda row: means(evidence.COLA_SMALL, row)["ece"]) == "svdkl"
    scaled = means(evidence.COLA_SMALL, "temperature")
    assert f"(NLL {scaled['nll']:.2f}, ECE {scaled['ece']:.2f})" in TEXT
    one, five = (means(evidence.COLA_SMALL + "-last", row) for row in ("kep", "deep_ensembles"))
    for suffix in ("", "-nll"):
        single, many = (
            means(evidence.COLA_SMALL + suffix, row) for row in ("kep", "deep_ensembles")
        )
        assert all(many[metric] < single[metric] for metric in ("nll", "ece", "aurc"))
    assert "by the other two rules the five are ahead in all three" in TEXT
    for rule, count in (("score", 4), ("last", 5)):
        ahead = evidence.seeds_ahead(evidence.COLA_SMALL, rule)
        assert [sum(ahead[metric]) for metric in ("ece", "nll", "brier")] == [count] * 3
    told = f"NLL {one['nll']:.2f} and ECE {one['ece']:.2f} at the last epoch where the five"
    assert f"{told} softmax models have {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    assert f"but AURC {one['aurc']:.2f} against {five['aurc']:.2f}" in TEXT


def test_results_tell_what_noise_that_stays_gave() -> None:
    found = {
        rule: gains(evidence.COLA_LIVING + end, "kep", "msp")
        for rule, end in evidence.RULES.items()
    }
    last = found["last epoch"]
    assert metrics(last, better=False, sure=False) == {"mcc"}
    assert metrics(last, better=True, sure=True) == {"ece", "nll"}
    by_score, by_nll = found["best validation score"], found["best validation NLL"]
    for rule in (by_score, by_nll):
        assert sum(better for better, _ in rule.values()) == 5
    assert metrics(by_score, better=True, sure=True) == {"ece"}
    assert not any(sure for _, sure in by_nll.values())
    assert "ahead in all metrics but MCC, in ECE and NLL beyond noise" in TEXT
    (row,) = (row for row in evidence.table(evidence.COLA_LIVING)["rows"] if row["key"] == "kep")
    for run in row["runs"]:
        history = RESULTS / "cola-living" / "runs" / run / "history.jsonl"
        assert 5 < json.loads(history.read_text().splitlines()[-1])["train"]["kl"] < 16
    assert len(row["runs"]) == 5


def test_results_tell_how_near_one_model_with_noise_comes_to_five() -> None:
    def told(path: str, row: str, names: bool) -> str:
        found = means(path, row)
        values = [
            f"{metric.upper() + ' ' if names else ''}{found[metric]:.2f}"
            for metric in ("aurc", "nll", "ece")
        ]
        return f"{values[0]}, {values[1]} and {values[2]}"

    for end, between in (("-last", " where five softmax models have "), ("-nll", " against ")):
        one = told(evidence.COLA_LIVING_ADDED + end, "kep_mc_dropout", True)
        assert f"{one}{between}{told(evidence.COLA_LIVING + end, 'deep_ensembles', False)}" in TEXT
    one, five = (
        means(path + "-last", row)
        for path, row in (
            (evidence.COLA_LIVING_ADDED, "kep_mc_dropout"),
            (evidence.COLA_LIVING, "deep_ensembles"),
        )
    )
    assert all(1 < one[metric] / five[metric] < 1.02 for metric in ("aurc", "nll", "ece"))
    assert "it is within 2 % of the five in NLL, ECE and AURC at the last epoch" in TEXT
    same_way = told(evidence.COLA_LIVING + "-last", "mc_dropout", False)
    assert f"asked the same way has {same_way}" in TEXT
    laplace = means(evidence.COLA_LIVING_ADDED + "-last", "kep_kfllla")
    five = means(evidence.COLA_LIVING + "-last", "deep_ensembles")
    assert laplace["nll"] < five["nll"]
    assert laplace["ece"] < five["ece"]
    assert (
        "has NLL {nll:.2f} and ECE {ece:.2f}, both ahead of the five, and AURC {aurc:.2f}".format(
            **laplace
        )
        in TEXT
    )
    shares = []
    for end in evidence.RULES.values():
        one = means(evidence.COLA_LIVING_ADDED + end, "kep_mc_dropout")["aurc"]
        five = means(evidence.COLA_LIVING + end, "deep_ensembles")["aurc"]
        shares.append(100 * (one - five) / five)
    assert f"by {min(shares):.1f} to {max(shares):.0f} per cent" in TEXT
    many, one = (
        told(path, row, False)
        for path, row in (
            (evidence.COLA_LIVING, "deep_ensembles"),
            (evidence.COLA_LIVING_ADDED, "kep_mc_dropout"),
        )
    )
    assert f"further ahead in all three ({many} against {one})" in TEXT
    behind = [
        means(evidence.COLA_LIVING_ADDED, "kep_mc_dropout")[metric]
        / means(evidence.COLA_LIVING, "deep_ensembles")[metric]
        for metric in ("nll", "ece", "aurc")
    ]
    shares = "{:.0f}, {:.0f} and {:.0f} %".format(*(100 * (share - 1) for share in behind))
    assert f"where the five are ahead by {shares}" in TEXT
    for end in evidence.RULES.values():
        five = means(evidence.COLA_LIVING + end, "deep_ensembles")
        for row in page.ADDED_ROWS:
            assert means(evidence.COLA_LIVING_ADDED + end, row)["aurc"] > five["aurc"]
    softmax = means(evidence.COLA_LIVING + "-last", "kfllla")
    assert "model with KFLLLA has {nll:.2f}, {ece:.2f} and {aurc:.2f}".format(**softmax) in TEXT


def test_results_tell_which_setting_comes_nearer_to_five_by_the_best_nll() -> None:
    shares = {
        folder: [
            means(f"{added}-nll", "kep_mc_dropout")[metric]
            / means(f"{path}-nll", "deep_ensembles")[metric]
            for metric in ("aurc", "nll", "ece")
        ]
        for folder, path, added in (
            ("features", evidence.COLA_FEATURES, evidence.COLA_FEATURES_ADDED),
            ("living", evidence.COLA_LIVING, evidence.COLA_LIVING_ADDED),
        )
    }
    assert all(ours < theirs for ours, theirs in zip(*list(shares.values())[::-1], strict=True))
    aurc, nll, ece = (100 * (share - 1) for share in shares["living"])
    assert f"({aurc:.1f} and {nll:.1f} % behind in AURC and NLL, ahead in ECE)" in TEXT
    assert ece < 0


def test_results_tell_what_the_pair_of_branches_gave() -> None:
    left, right = (gains(evidence.COLA_PAIRS, "kep_er", one) for one in ("kep_ee", "kep_rr"))
    both = {m for m in left if left[m][0] and right[m][0]}
    assert both == {"aurc", "auroc", "ece", "nll", "brier"}
    assert metrics(right, better=True, sure=True) == {"aurc", "ece", "nll", "brier"}
    assert metrics(left, better=True, sure=True) == set()
    assert metrics(left, better=False, sure=True) == {"mcc"}
    rows = evidence.table(evidence.COLA_PAIRS)["rows"]
    for row in rows:
        assert len(row["runs"]) == 5
        for other in ("msp", "kep"):
            pair, single = means(evidence.COLA_PAIRS, row["key"]), means(evidence.COLA_SMALL, other)
            assert pair["mcc"] < single["mcc"]
            assert all(pair[m] > single[m] for m in ("aurc", "ece", "nll", "brier"))
        for run in row["runs"]:
            history = RESULTS / "cola-table5" / "runs" / run / "history.jsonl"
            assert json.loads(history.read_text().splitlines()[-1])["train"]["kl"] > 200


def test_results_tell_how_low_the_ranks_are() -> None:
    path = RESULTS / "cola-table5" / "figures" / "figure4-cola-small.json"
    drawn = json.loads(path.read_text())["data"]
    first = {
        name: [layer["singular_values"][0] for layer in model["layers"]]
        for name, model in drawn.items()
    }
    told = "first singular value makes up {:.2f} of the spectrum in each, with softmax attention"
    kep, softmax = first["KEP-SVGP, all layers"], first["MSP"]
    assert f"{kep[0]:.2f}" == f"{kep[1]:.2f}"
    assert f"{told.format(kep[0])} {softmax[0]:.2f} and {softmax[1]:.2f}" in TEXT


def test_results_tell_what_the_pair_gave_over_the_paper_s_schedule() -> None:
    path = evidence.COLA_PAIRS_PAPER
    left, right = (gains(path, "kep_er", one) for one in ("kep_ee", "kep_rr"))
    assert metrics(left, better=True, sure=True) == {"ece", "nll", "brier"}
    assert metrics(right, better=True, sure=True) == {"nll", "brier"}
    assert not metrics(left, better=False, sure=True) | metrics(right, better=False, sure=True)
    kept, last_nll = [], []
    for row in evidence.table(path)["rows"]:
        assert len(row["runs"]) == 5
        assert means(path, row["key"])["mcc"] < means(evidence.COLA, "msp")["mcc"]
        histories = [evidence.history(f"cola-table5/runs/{run}") for run in row["runs"]]
        for history in histories:
            assert len(history) == 50
            assert abs(history[-1]["train"]["kl"]) < 1e-4
        best = [max(history, key=lambda epoch: epoch["val"]["mcc"]) for history in histories]
        kept.append(mean(epoch["epoch"] for epoch in best))
        last_nll.append(10 * mean(history[-1]["val"]["nll"] for history in histories))
    assert [row["key"] for row in evidence.table(path)["rows"]] == ["kep_ee", "kep_rr", "kep_er"]
    assert f"({kept[2]:.0f} on average, against {kept[0]:.0f} and {kept[1]:.0f})" in TEXT
    assert f"({last_nll[2]:.1f} against {last_nll[0]:.1f} and {last_nll[1]:.1f})" in TEXT
    assert last_nll[2] > max(last_nll[:2])
