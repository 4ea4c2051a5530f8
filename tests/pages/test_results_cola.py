"""What docs/results.md says of CoLA is what the files in `results/` say."""

import json

import evidence
import page
import pytest
from pages.told import RESULTS, TEXT, gains, means, metrics


def test_results_tell_how_kep_stands_to_softmax() -> None:
    found = gains(evidence.COLA, "kep", "msp")
    ahead = {metric for metric, (better, _) in found.items() if better}
    certain = {metric for metric, (_, sure) in found.items() if sure}
    assert ahead == {"mcc", "aurc", "auroc"}
    assert certain == {"ece", "nll", "brier"}
    assert "KEP-SVGP is ahead in MCC, AURC and AUROC, all within noise, behind in FPR95" in TEXT
    assert "within noise, and behind in ECE, NLL and Brier score beyond it" in TEXT
    svdkl = gains(evidence.COLA, "kep", "svdkl")
    assert {metric for metric, (_, sure) in svdkl.items() if sure} == {"nll"}
    assert svdkl["nll"][0]
    sgpa = gains(evidence.COLA, "kep", "sgpa")
    assert metrics(sgpa, better=False, sure=True) == {"ece", "nll", "brier"}
    assert metrics(sgpa, better=True, sure=True) == set()


def test_results_tell_what_hangs_on_the_rule() -> None:
    rules = {rule: evidence.COLA + suffix for rule, suffix in evidence.RULES.items()}
    kep, msp = ({rule: means(path, row) for rule, path in rules.items()} for row in ("kep", "msp"))
    nll = {rule: (kep[rule]["nll"], msp[rule]["nll"]) for rule in rules}
    score, least, last = (nll[rule] for rule in rules)
    assert f"an NLL of {least[1]:.2f} or {last[1]:.2f} for softmax" in TEXT
    assert f"worse in NLL than softmax ({score[0]:.2f} against {score[1]:.2f})" in TEXT
    assert f"{least[0]:.2f}" == f"{least[1]:.2f}"
    assert f"they are equal ({least[0]:.2f} both)" in TEXT
    assert last[0] < last[1]
    assert f"KEP-SVGP is better ({last[0]:.2f} against {last[1]:.2f})" in TEXT
    for rule, path in rules.items():
        many = means(path, "deep_ensembles")
        for metric in ("aurc", "nll"):
            assert many[metric] < min(kep[rule][metric], msp[rule][metric])
        assert abs(kep[rule]["mcc"] - msp[rule]["mcc"]) < 1


def test_results_tell_what_the_elbo_gave() -> None:
    for suffix in evidence.RULES.values():
        path = f"cola-elbo/tables/table1-cola-paper{suffix}"
        kep, msp = means(path, "kep"), means(path, "msp")
        assert kep["mcc"] < msp["mcc"]
        assert all(kep[metric] > msp[metric] for metric in ("aurc", "ece", "nll", "brier", "auroc"))
    assert "worse than softmax in MCC, AURC, ECE, NLL and Brier score under every rule" in TEXT


def test_results_tell_how_one_model_stands_to_five() -> None:
    one = means("cola/tables/table7-cola-paper", "kep_temperature")
    five = means(evidence.COLA, "deep_ensembles")
    softmax = means(evidence.COLA, "temperature")
    told = f"has NLL {one['nll']:.2f} and ECE {one['ece']:.2f} where five softmax models have"
    assert f"{told} {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    assert f"in AURC it has {one['aurc']:.2f} against {five['aurc']:.2f}" in TEXT
    assert f"has {softmax['nll']:.2f} and {softmax['ece']:.2f}" in TEXT


def test_results_tell_what_features_alone_gave() -> None:
    found = {
        rule: gains(evidence.COLA_FEATURES + end, "kep", "msp")
        for rule, end in evidence.RULES.items()
    }
    by_score, by_nll, last = found.values()
    calibrated = {"ece", "nll", "brier"}
    assert metrics(by_score, better=True, sure=True) == calibrated | {"aurc"}
    assert metrics(by_score, better=True, sure=False) == {"mcc", "fpr95"}
    assert metrics(by_score, better=False, sure=False) == {"auroc"}
    assert metrics(last, better=True, sure=True) == calibrated
    assert metrics(last, better=False, sure=False) == {"auroc"}
    assert metrics(last, better=False, sure=True) == set()
    assert sum(better for better, _ in by_nll.values()) == 5
    assert not any(sure for _, sure in by_nll.values())
    scaled, softmax = (
        means(path, row)
        for path, row in (
            (evidence.COLA_FEATURES_ADDED, "kep_temperature"),
            (evidence.COLA_FEATURES, "temperature"),
        )
    )
    both = gains(evidence.COLA_FEATURES_ADDED, "kep_temperature", "temperature")
    assert metrics(both, better=True, sure=True) == {"nll", "brier", "aurc"}
    assert both["ece"] == (False, False)
    for metric in ("nll", "ece"):
        assert f"({scaled[metric]:.2f} against {softmax[metric]:.2f})" in TEXT


def test_results_tell_what_asking_through_dropout_gave() -> None:
    """All seven ahead of softmax under two rules, and how the one model stands to five."""
    found = evidence.table("cola-features/differences")["rules"]
    upwards = {"mcc", "auroc"}
    for rule, end in (("score", ""), ("nll", "-nll"), ("last", "-last")):
        one = means(evidence.COLA_FEATURES_ADDED + end, "kep_mc_dropout")
        others = {
            "MSP": means(evidence.COLA_FEATURES + end, "msp"),
            "Deep Ensembles": means(evidence.COLA_FEATURES + end, "deep_ensembles"),
        }
        scales = {c["key"]: c["scale"] for c in evidence.table(evidence.COLA_FEATURES)["columns"]}
        for name, other in others.items():
            for metric, interval in found[rule][name].items():
                # the files of the tables and of the bootstrap know of the same predictions
                gap = one[metric] - other[metric]
                assert gap == pytest.approx(interval["difference"] * scales[metric], abs=1e-6)
        ahead = {
            name: {m for m in one if (one[m] > other[m]) == (m in upwards)}
            for name, other in others.items()
        }
        sure = {m for m, ends in found[rule]["MSP"].items() if ends["low"] > 0 or ends["high"] < 0}
        calibrated = {"ece", "nll", "brier"}
        certain = {"score": calibrated | {"aurc"}, "nll": set()}
        assert sure == certain.get(rule, calibrated | {"aurc", "mcc"})
        assert len(ahead["MSP"]) == (5 if rule == "nll" else 7)
        same = means(evidence.COLA_FEATURES + end, "mc_dropout")
        behind = {m for m in one if (one[m] < same[m]) == (m in upwards)}
        assert behind == {"auroc"} | ({"fpr95", "ece"} if rule == "nll" else set())
        if rule == "score":
            assert f"({same['auroc']:.2f} against {one['auroc']:.2f})" in TEXT
        three = {"nll", "ece", "aurc"} & ahead["Deep Ensembles"]
        assert (
            three == {"score": {"nll", "ece"}, "nll": set(), "last": {"nll", "ece", "aurc"}}[rule]
        )
        if rule == "score":
            told = "{nll:.2f} and {ece:.2f}"
            five = others["Deep Ensembles"]
            assert f"({told.format(**one)} against {told.format(**five)})" in TEXT
            assert f"({one['aurc']:.2f} against {five['aurc']:.2f})" in TEXT
            assert f"{100 * (one['aurc'] / five['aurc'] - 1):.1f} % behind in AURC" in TEXT
            for metric in ("nll", "ece", "aurc"):
                interval = found[rule]["Deep Ensembles"][metric]
                assert interval["low"] < 0 < interval["high"]
        if rule == "last":
            five = others["Deep Ensembles"]
            told = "has AURC {aurc:.2f}, NLL {nll:.2f} and ECE {ece:.2f} where five softmax"
            assert told.format(**one) in TEXT
            assert "{aurc:.2f}, {nll:.2f} and {ece:.2f}".format(**five) in TEXT


def test_results_tell_that_it_is_no_posterior_that_has_learnt() -> None:
    """Every head is at its prior; without attention a model has less than half of the gain."""
    (row,) = (row for row in evidence.table(evidence.COLA_FEATURES)["rows"] if row["key"] == "kep")
    files = [
        json.loads((RESULTS / "cola-features" / "runs" / run / "inspect.json").read_text())
        for run in row["runs"]
    ]
    assert {(file["checkpoint"], file["examples"]) for file in files} == {("score", 64)}
    posteriors = [layer["posterior"] for file in files for layer in file["layers"]]
    assert len(posteriors) == 10
    largest = max(value for posterior in posteriors for value in posterior["kl"])
    assert f"the KL of a head is at most {largest:.1f}" in TEXT
    assert min(value for posterior in posteriors for value in posterior["noise"]) > 0.999
    lines = [line.strip("| ").split(" | ") for line in page.without_attention().splitlines()[2:]]
    cells = {title: [float(value) for value in values] for title, *values in lines}

    def shares(rule: str) -> list[float]:
        """What no attention has of KEP-SVGP's gain over softmax, in per cent."""
        none, softmax, kep = (
            cells[f"{name}, {rule}"] for name in ("no attention", "MSP", "KEP-SVGP")
        )
        return [100 * (n - m) / (k - m) for n, m, k in zip(none, softmax, kep, strict=True)]

    by_score, last = shares("best validation score"), shares("last epoch")
    told = f"makes up {by_score[0]:.0f} % of KEP-SVGP's gain in MCC and {by_score[1]:.0f} % in AURC"
    assert told in TEXT
    assert max(by_score[4:]) < 0
    five = [last[column] for column in (0, 1, 4, 5, 6)]
    assert f"at the last epoch {min(five):.0f} to {max(five):.0f} % in MCC, AURC, ECE" in TEXT
    none, softmax = (cells[f"{name}, best validation NLL"] for name in ("no attention", "MSP"))
    assert none[0] < softmax[0]
    assert all(none[column] > softmax[column] for column in (1, 4, 5, 6))


def test_results_tell_what_speaks_against_features_alone() -> None:
    """The five under the rule that suits them, a temperature for one, and other domains."""
    five = {
        rule: means(evidence.COLA_FEATURES + end, "deep_ensembles")
        for rule, end in evidence.RULES.items()
    }
    least = five["best validation NLL"]
    for metric in ("nll", "ece"):
        assert least[metric] == min(found[metric] for found in five.values())
    assert f"their lowest NLL and ECE ({least['nll']:.2f} and {least['ece']:.2f})" in TEXT
    scaled = means(evidence.COLA_FEATURES, "temperature")
    assert all(scaled[m] < five["best validation score"][m] for m in ("nll", "ece"))
    assert f"({scaled['nll']:.2f} and {scaled['ece']:.2f} by the best score)" in TEXT
    path = "cola-features/tables/table2-cola-paper"
    assert f"MCC ({means(path, 'kep')['mcc']:.2f} against {means(path, 'msp')['mcc']:.2f})" in TEXT
    rows = [row["key"] for row in evidence.table(path)["rows"]]
    assert min(rows, key=lambda row: means(path, row)["mcc"]) == "kep_ensembles"
    found = gains(path, "kep", "msp")
    assert metrics(found, better=True, sure=True) == {"ece", "nll", "brier"}
    assert metrics(found, better=False, sure=False) == {"mcc", "fpr95"}


def test_the_layer_of_the_table_is_silent() -> None:
    """The last KL of every run in the tables, which the page says is that of the prior."""
    for path in (evidence.COLA, evidence.COLA_SMALL):
        (row,) = (row for row in evidence.table(path)["rows"] if row["key"] == "kep")
        assert len(row["runs"]) == 5
        for run in row["runs"]:
            history = (RESULTS / path).parents[1] / "runs" / run / "history.jsonl"
            assert abs(json.loads(history.read_text().splitlines()[-1])["train"]["kl"]) < 1e-4


def test_results_tell_which_test_numbers_were_seen() -> None:
    def seen(run: str) -> float:
        (method,) = json.loads((RESULTS / "trials" / run / "metrics.json").read_text())[
            "score"
        ].values()
        return method["test"]["mcc"]

    kep = [seen(f"cola-landmark-clipped{end}") for end in ("-dropout0.3", "")]
    softmax = [seen(f"cola-softmax{end}") for end in ("-dropout0.3", "")]
    assert "({:.3f} against {:.3f}) agreed".format(*kep) in TEXT
    assert "that of softmax ({:.3f} against {:.3f}) did not".format(*softmax) in TEXT


def test_floor_is_reached_nowhere_over_fifty_epochs_with_embeddings() -> None:
    for suffix in evidence.RULES.values():
        assert not all(better for better, _ in gains(evidence.COLA + suffix, "kep", "msp").values())
    five = means(evidence.COLA + "-nll", "deep_ensembles")
    assert f"the five have {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    one = means("cola/tables/table7-cola-paper", "kep_temperature")
    assert five["nll"] < one["nll"]
    assert five["ece"] < one["ece"]
    scaled = [
        means(evidence.COLA + suffix, "temperature")["nll"] for suffix in evidence.RULES.values()
    ]
    assert "an NLL of {:.2f}, {:.2f} and {:.2f} under the three rules".format(*scaled) in TEXT
