"""docs/results*.md and the README's table say what the files in `results/` say, nothing else."""

import importlib.util
import json
import re
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

spec = importlib.util.spec_from_file_location("page", RESULTS / "page.py")
assert spec is not None
assert spec.loader is not None
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)
TOLD = page.PAGES[:2]


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_files(path) -> None:
    text = path.read_text()
    assert page.filled(text) == text, "run: python results/page.py"


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.name)
def test_every_table_of_results_is_filled_from_files(path) -> None:
    rest = page.BLOCK.sub("", path.read_text())
    assert not [line for line in rest.splitlines() if line.startswith("| ") and "." in line]


def test_block_of_a_changed_file_would_be_noticed() -> None:
    text = TOLD[0].read_text()
    (first,) = re.findall(r"^\| MSP \| (\d+\.\d\d) ±", text, flags=re.MULTILINE)[:1]
    changed = text.replace(first, f"{float(first) + 0.01:.2f}", 1)
    assert page.filled(changed) == text


def test_every_table_names_runs_whose_files_are_there() -> None:
    tables = sorted(RESULTS.glob("*/tables/*.json"))
    assert tables
    for path in tables:
        runs = {
            run for row in page.table(str(path.relative_to(RESULTS)))["rows"] for run in row["runs"]
        }
        assert runs
        for run in runs:
            for name in ("config.toml", "metrics.json", "history.jsonl", "run.json"):
                assert (path.parents[1] / "runs" / run / name).exists(), f"{path}: {run}/{name}"


TEXT = " ".join(word for path in TOLD for word in path.read_text().split())
TABLE1 = "cola/tables/table1-cola-paper"


def means(path: str, row: str) -> dict[str, float]:
    """The means of a row in the table's units."""
    found = page.table(path)
    scales = {column["key"]: column["scale"] for column in found["columns"]}
    return {
        cell["column"]: cell["mean"] * scales[cell["column"]]
        for cell in found["cells"]
        if cell["row"] == row and cell["mean"] is not None
    }


def gains(path: str, first: str, second: str) -> dict[str, tuple[bool, bool]]:
    """Whether the first row is better than the second, and whether that is beyond noise."""
    found = {}
    for claim in page.table(path)["claims"]:
        if claim["ours"] and {claim["better"], claim["worse"]} == {first, second}:
            holds = claim["verdict"].startswith("holds")
            is_first = holds == (claim["better"] == first)
            found[claim["column"]] = is_first, "noise" not in claim["verdict"]
    return found


def test_results_tell_how_kep_stands_to_softmax() -> None:
    found = gains(TABLE1, "kep", "msp")
    ahead = {metric for metric, (better, _) in found.items() if better}
    certain = {metric for metric, (_, sure) in found.items() if sure}
    assert ahead == {"mcc", "aurc", "auroc"}
    assert certain == {"ece", "nll", "brier"}
    assert "KEP-SVGP is ahead in MCC, AURC and AUROC, all within noise, behind in FPR95" in TEXT
    assert "within noise, and behind in ECE, NLL and Brier score beyond it" in TEXT
    svdkl = gains(TABLE1, "kep", "svdkl")
    assert {metric for metric, (_, sure) in svdkl.items() if sure} == {"nll"}
    assert svdkl["nll"][0]
    sgpa = gains(TABLE1, "kep", "sgpa")
    assert metrics(sgpa, better=False, sure=True) == {"ece", "nll", "brier"}
    assert metrics(sgpa, better=True, sure=True) == set()


def test_results_tell_what_hangs_on_the_rule() -> None:
    rules = {rule: TABLE1 + suffix for rule, suffix in page.RULES.items()}
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
    for suffix in page.RULES.values():
        path = f"cola-elbo/tables/table1-cola-paper{suffix}"
        kep, msp = means(path, "kep"), means(path, "msp")
        assert kep["mcc"] < msp["mcc"]
        assert all(kep[metric] > msp[metric] for metric in ("aurc", "ece", "nll", "brier", "auroc"))
    assert "worse than softmax in MCC, AURC, ECE, NLL and Brier score under every rule" in TEXT


def test_results_tell_how_one_model_stands_to_five() -> None:
    one = means("cola/tables/table7-cola-paper", "kep_temperature")
    five = means(TABLE1, "deep_ensembles")
    softmax = means(TABLE1, "temperature")
    told = f"has NLL {one['nll']:.2f} and ECE {one['ece']:.2f} where five softmax models have"
    assert f"{told} {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    assert f"in AURC it has {one['aurc']:.2f} against {five['aurc']:.2f}" in TEXT
    assert f"has {softmax['nll']:.2f} and {softmax['ece']:.2f}" in TEXT


COLA_SMALL = "cola-small/tables/table1-cola-small"


def test_results_tell_what_ten_epochs_gave() -> None:
    """Calibration beyond noise under two rules; all seven, within noise, under the third."""
    found = {rule: gains(COLA_SMALL + suffix, "kep", "msp") for rule, suffix in page.RULES.items()}
    calibrated = {"ece": (True, True), "nll": (True, True), "brier": (True, True)}
    for rule in ("best validation score", "last epoch"):
        sure = {metric: gain for metric, gain in found[rule].items() if gain[1]}
        assert sure == calibrated
    assert set(found["best validation NLL"].values()) == {(True, False)}
    assert "ahead of softmax in all seven metrics, all of them within noise" in TEXT
    assert not any(sure for _, sure in gains(COLA_SMALL, "kep", "sgpa").values())
    assert "KEP-SVGP and SGPA cannot in anything" in TEXT
    rows = [row["key"] for row in page.table(COLA_SMALL)["rows"]]
    assert max(rows, key=lambda row: means(COLA_SMALL, row)["ece"]) == "svdkl"
    scaled = means(COLA_SMALL, "temperature")
    assert f"(NLL {scaled['nll']:.2f}, ECE {scaled['ece']:.2f})" in TEXT
    one, five = (means(COLA_SMALL + "-last", row) for row in ("kep", "deep_ensembles"))
    for suffix in ("", "-nll"):
        single, many = (means(COLA_SMALL + suffix, row) for row in ("kep", "deep_ensembles"))
        assert all(many[metric] < single[metric] for metric in ("nll", "ece", "aurc"))
    assert "by the other two rules the five are ahead in all three" in TEXT
    for rule, count in (("score", 4), ("last", 5)):
        ahead = page.seeds_ahead(COLA_SMALL, rule)
        assert [sum(ahead[metric]) for metric in ("ece", "nll", "brier")] == [count] * 3
    told = f"NLL {one['nll']:.2f} and ECE {one['ece']:.2f} at the last epoch where the five"
    assert f"{told} softmax models have {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    assert f"but AURC {one['aurc']:.2f} against {five['aurc']:.2f}" in TEXT


def test_results_tell_what_noise_that_stays_gave() -> None:
    found = {rule: gains(page.COLA_LIVING + end, "kep", "msp") for rule, end in page.RULES.items()}
    last = found["last epoch"]
    assert metrics(last, better=False, sure=False) == {"mcc"}
    assert metrics(last, better=True, sure=True) == {"ece", "nll"}
    by_score, by_nll = found["best validation score"], found["best validation NLL"]
    for rule in (by_score, by_nll):
        assert sum(better for better, _ in rule.values()) == 5
    assert metrics(by_score, better=True, sure=True) == {"ece"}
    assert not any(sure for _, sure in by_nll.values())
    assert "ahead in all metrics but MCC, in ECE and NLL beyond noise" in TEXT
    (row,) = (row for row in page.table(page.COLA_LIVING)["rows"] if row["key"] == "kep")
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
        one = told(page.COLA_LIVING_ADDED + end, "kep_mc_dropout", True)
        assert f"{one}{between}{told(page.COLA_LIVING + end, 'deep_ensembles', False)}" in TEXT
    one, five = (
        means(path + "-last", row)
        for path, row in (
            (page.COLA_LIVING_ADDED, "kep_mc_dropout"),
            (page.COLA_LIVING, "deep_ensembles"),
        )
    )
    assert all(1 < one[metric] / five[metric] < 1.02 for metric in ("aurc", "nll", "ece"))
    assert "it is within 2 % of the five in NLL, ECE and AURC at the last epoch" in TEXT
    same_way = told(page.COLA_LIVING + "-last", "mc_dropout", False)
    assert f"asked the same way has {same_way}" in TEXT
    laplace = means(page.COLA_LIVING_ADDED + "-last", "kep_kfllla")
    five = means(page.COLA_LIVING + "-last", "deep_ensembles")
    assert laplace["nll"] < five["nll"]
    assert laplace["ece"] < five["ece"]
    assert (
        "has NLL {nll:.2f} and ECE {ece:.2f}, both ahead of the five, and AURC {aurc:.2f}".format(
            **laplace
        )
        in TEXT
    )
    shares = []
    for end in page.RULES.values():
        one = means(page.COLA_LIVING_ADDED + end, "kep_mc_dropout")["aurc"]
        five = means(page.COLA_LIVING + end, "deep_ensembles")["aurc"]
        shares.append(100 * (one - five) / five)
    assert f"by {min(shares):.1f} to {max(shares):.0f} per cent" in TEXT
    many, one = (
        told(path, row, False)
        for path, row in (
            (page.COLA_LIVING, "deep_ensembles"),
            (page.COLA_LIVING_ADDED, "kep_mc_dropout"),
        )
    )
    assert f"further ahead in all three ({many} against {one})" in TEXT
    behind = [
        means(page.COLA_LIVING_ADDED, "kep_mc_dropout")[metric]
        / means(page.COLA_LIVING, "deep_ensembles")[metric]
        for metric in ("nll", "ece", "aurc")
    ]
    shares = "{:.0f}, {:.0f} and {:.0f} %".format(*(100 * (share - 1) for share in behind))
    assert f"where the five are ahead by {shares}" in TEXT
    for end in page.RULES.values():
        five = means(page.COLA_LIVING + end, "deep_ensembles")
        for row in page.ADDED_ROWS:
            assert means(page.COLA_LIVING_ADDED + end, row)["aurc"] > five["aurc"]
    softmax = means(page.COLA_LIVING + "-last", "kfllla")
    assert "model with KFLLLA has {nll:.2f}, {ece:.2f} and {aurc:.2f}".format(**softmax) in TEXT


def test_results_tell_what_features_alone_gave() -> None:
    found = {
        rule: gains(page.COLA_FEATURES + end, "kep", "msp") for rule, end in page.RULES.items()
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
            (page.COLA_FEATURES_ADDED, "kep_temperature"),
            (page.COLA_FEATURES, "temperature"),
        )
    )
    both = gains(page.COLA_FEATURES_ADDED, "kep_temperature", "temperature")
    assert metrics(both, better=True, sure=True) == {"nll", "brier", "aurc"}
    assert both["ece"] == (False, False)
    for metric in ("nll", "ece"):
        assert f"({scaled[metric]:.2f} against {softmax[metric]:.2f})" in TEXT


def test_results_tell_what_asking_through_dropout_gave() -> None:
    """All seven ahead of softmax under two rules, and how the one model stands to five."""
    found = page.table("cola-features/differences")["rules"]
    upwards = {"mcc", "auroc"}
    for rule, end in (("score", ""), ("nll", "-nll"), ("last", "-last")):
        one = means(page.COLA_FEATURES_ADDED + end, "kep_mc_dropout")
        others = {
            "MSP": means(page.COLA_FEATURES + end, "msp"),
            "Deep Ensembles": means(page.COLA_FEATURES + end, "deep_ensembles"),
        }
        scales = {c["key"]: c["scale"] for c in page.table(page.COLA_FEATURES)["columns"]}
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
        same = means(page.COLA_FEATURES + end, "mc_dropout")
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
    (row,) = (row for row in page.table(page.COLA_FEATURES)["rows"] if row["key"] == "kep")
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
        rule: means(page.COLA_FEATURES + end, "deep_ensembles") for rule, end in page.RULES.items()
    }
    least = five["best validation NLL"]
    for metric in ("nll", "ece"):
        assert least[metric] == min(found[metric] for found in five.values())
    assert f"their lowest NLL and ECE ({least['nll']:.2f} and {least['ece']:.2f})" in TEXT
    scaled = means(page.COLA_FEATURES, "temperature")
    assert all(scaled[m] < five["best validation score"][m] for m in ("nll", "ece"))
    assert f"({scaled['nll']:.2f} and {scaled['ece']:.2f} by the best score)" in TEXT
    path = "cola-features/tables/table2-cola-paper"
    assert f"MCC ({means(path, 'kep')['mcc']:.2f} against {means(path, 'msp')['mcc']:.2f})" in TEXT
    rows = [row["key"] for row in page.table(path)["rows"]]
    assert min(rows, key=lambda row: means(path, row)["mcc"]) == "kep_ensembles"
    found = gains(path, "kep", "msp")
    assert metrics(found, better=True, sure=True) == {"ece", "nll", "brier"}
    assert metrics(found, better=False, sure=False) == {"mcc", "fpr95"}


SEVEN = {"mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier"}


def fold_sides(path: str, rule: str, pair: str) -> tuple[set[str], set[str], set[str]]:
    """What is ahead beyond noise, what is behind beyond it, and what is ahead at all."""
    ahead, behind, at_all = set(), set(), set()
    for name, interval in page.table(path)["rules"][rule]["differences"][pair].items():
        sign = 1 if name in {"accuracy", "mcc", "auroc"} else -1
        ends = [sign * interval[end] for end in page.ENDS]
        ahead |= {name} if min(ends) > 0 else set()
        behind |= {name} if max(ends) < 0 else set()
        at_all |= {name} if ends[0] > 0 else set()
    return ahead, behind, at_all


def fold_mean(path: str, rule: str, arm: str, metric: str) -> float:
    """A metric of an arm, over its models."""
    values = page.table(path)["rules"][rule]["results"][arm][metric]
    return sum(values) / len(values)


def test_results_tell_what_the_folds_gave() -> None:
    found = page.table(page.COLA_FOLDS)
    assert sum(found["folds"].values()) == 7696
    assert {arm["seeds"] for arm in found["arms"] if "authors" in arm["name"]} == {3}

    def sides(rule: str, pair: str) -> tuple[set[str], set[str], set[str]]:
        return fold_sides(page.COLA_FOLDS, rule, pair)

    authors, living = page.FOLD_PAIRS
    calibrated, ordered = {"ece", "nll", "brier"}, {"aurc", "auroc"}
    by_score, last, by_nll = (sides(rule, living) for rule in ("score", "last", "nll"))
    assert by_score[0] == last[0] == calibrated | ordered
    assert by_score[2] & SEVEN == SEVEN - {"mcc"}
    assert by_score[1] == set()
    assert last[1] == {"mcc"}
    assert by_nll[:2] == ({"accuracy"}, {"mcc", "auroc"})
    by_score, last, by_nll = (sides(rule, authors) for rule in ("score", "last", "nll"))
    assert by_score[0] == calibrated | {"accuracy"}
    assert by_score[1] == {"auroc"}
    assert last[0] == calibrated | {"accuracy", "aurc"}
    assert not last[1] | by_nll[1]
    assert not any("mcc" in each[2] for each in (by_score, last, by_nll))
    counts = [len(sides(rule, living)[2] & SEVEN) for rule in ("score", "last", "nll")]
    assert counts == [6, 5, 4]
    assert all(len(sides(rule, authors)[2] & SEVEN) == 5 for rule in ("score", "last", "nll"))
    assert "six of seven by the best validation score, five at the last epoch and four" in TEXT
    kl = [value for arm, values in found["last kl"].items() if "authors" in arm for value in values]
    assert f"a KL of {min(kl):.1f} to {max(kl):.1f} at the last epoch" in TEXT
    half, _, _ = sides("score", "MSP, dropout 0.5 − MSP")
    assert half == {"accuracy", "mcc", "aurc", "brier"}

    mean = partial(fold_mean, page.COLA_FOLDS)
    softmax, kep, five = "MSP", "KEP-SVGP, noise that stays", "Deep Ensembles"
    for rule in ("score", "nll", "last"):
        called = {arm: share[0] for arm, share in found["rules"][rule]["predicted"].items()}
        for arm in (kep, "KEP-SVGP, authors' choices"):
            assert mean(rule, arm, "accuracy") > mean(rule, softmax, "accuracy")
            assert called[arm] < called[softmax]
        for name in calibrated:
            assert mean(rule, "Temperature Scaling", name) < mean(rule, kep, name)
            assert mean(rule, "KEP-SVGP, authors' choices", name) < mean(rule, kep, name)
        assert 1.06 < mean(rule, kep, "aurc") / mean(rule, five, "aurc") < 1.074
        assert ("accuracy" in sides(rule, living)[0]) == (rule == "nll")
        assert "accuracy" in sides(rule, authors)[0]
    results = found["rules"]["score"]["results"]
    ours = mean("score", kep, "fpr95")
    fpr95 = [ours - sum(results[softmax]["fpr95"][:seeds]) / seeds for seeds in (5, 3)]
    assert [f"{100 * gap:+.1f}" for gap in fpr95] == ["-0.1", "+0.4"]
    shared = zip(results[kep]["mcc"], results[softmax]["mcc"], strict=False)
    assert all(ours < theirs for ours, theirs in shared)
    assert mean("score", five, "mcc") > mean("score", kep, "mcc") + 0.045
    called = found["rules"]["score"]["predicted"]
    assert all(abs(called[arm][0] - called[kep][0]) < 0.01 for arm in (five, "MSP, dropout 0.5"))
    for name, gap in (("accuracy", 0.011), ("mcc", 0.035)):
        behind = mean("score", "MSP, dropout 0.5", name) - mean("score", kep, name)
        assert round(behind, 3) == gap
    for name in ("accuracy", "mcc"):
        assert mean("score", five, name) > mean("score", "… + TS", name)
    assert mean("score", five, "brier") < mean("score", "… + TS", "brier")
    both = {
        name: " against ".join(
            f"{factor * mean('score', arm, name):.2f}" for arm in ("… + TS", "Temperature Scaling")
        )
        for name, factor in (("nll", 10), ("ece", 100))
    }
    assert f"NLL by the best score ({both['nll']}) and the higher ECE ({both['ece']})" in TEXT
    half_aurc = 1000 * mean("score", "MSP, dropout 0.5", "aurc")
    assert (
        f"the lower AURC ({1000 * mean('score', kep, 'aurc'):.2f} against {half_aurc:.2f})" in TEXT
    )
    assert f"where {100 * found['labels'][0]:.0f} % are" in TEXT
    for rule in ("score", "last"):
        for name in (*calibrated, "aurc"):
            assert mean(rule, kep, name) < mean(rule, "MSP, dropout 0.5", name)
        assert mean(rule, kep, "auroc") > mean(rule, "MSP, dropout 0.5", "auroc")
        for name in ("accuracy", "mcc"):
            assert mean(rule, kep, name) < mean(rule, "MSP, dropout 0.5", name)
    told = [f"{1000 * mean('score', arm, 'aurc'):.2f}" for arm in (five, kep)]
    assert "an AURC of {} by the best score, where one KEP-SVGP model has {}".format(*told) in TEXT
    scaled = {
        (rule, name): " against ".join(
            f"{factor * mean(rule, arm, name):.2f}" for arm in ("… + TS", five)
        )
        for rule in ("score", "nll")
        for name, factor in (("nll", 10), ("ece", 100))
    }
    nll, ece = scaled["score", "nll"], scaled["score", "ece"]
    assert f"the one is ahead in NLL ({nll}) and ECE ({ece})" in TEXT
    assert f"in neither ({scaled['nll', 'nll']}, {scaled['nll', 'ece']})" in TEXT


def test_results_tell_what_layers_side_by_side_gave() -> None:
    calibrated = {"ece", "nll", "brier"}
    folds = page.table(page.COLA_LAYERS_FOLDS)["folds"]
    assert sum(folds.values()) == 7696
    last, by_score, by_nll = (
        fold_sides(page.COLA_LAYERS_FOLDS, rule, "KEP-SVGP − MSP")
        for rule in ("last", "score", "nll")
    )
    assert last == (calibrated | {"aurc", "accuracy"}, set(), SEVEN - {"fpr95"} | {"accuracy"})
    assert by_score == (calibrated, set(), SEVEN - {"mcc", "fpr95"})
    assert by_nll == (set(), set(), {"mcc", "fpr95"})
    for metric, scale in (("nll", 10), ("brier", 100), ("ece", 100)):
        told = " against ".join(
            f"{scale * fold_mean(page.COLA_LAYERS_FOLDS, 'last', arm, metric):.2f}"
            for arm in ("… + TS", "Temperature Scaling")
        )
        assert told in TEXT
    scaled = {
        rule: {
            metric: (
                fold_mean(page.COLA_LAYERS_FOLDS, rule, "… + TS", metric)
                < fold_mean(page.COLA_LAYERS_FOLDS, rule, "Temperature Scaling", metric)
            )
            for metric in ("nll", "brier", "ece", "aurc")
        }
        for rule in ("score", "nll")
    }
    assert all(scaled["score"].values())
    assert not any(scaled["nll"][metric] for metric in ("nll", "brier", "aurc"))
    kl = page.table(page.COLA_LAYERS_FOLDS)["last kl"]["KEP-SVGP"]
    assert f"with a KL of {min(kl):.1f} to {max(kl):.1f}" in TEXT
    fresh = {
        rule: page.table("cola-layers/fresh")["rules"][rule]["differences"]["KEP-SVGP − MSP"]
        for rule in ("score", "last")
    }
    aurc = {rule: 1000 * found["aurc"]["difference"] for rule, found in fresh.items()}
    assert f"level by the best score ({aurc['score']:+.1f})" in TEXT
    assert f"and {-aurc['last']:.1f} lower at the last epoch, beyond noise" in TEXT
    for rule, found in fresh.items():
        assert (found["aurc"]["high"] < 0) == (rule == "last")
        assert fold_sides("cola-layers/fresh", rule, "KEP-SVGP − MSP")[0] >= calibrated
    mixed, *tried = (
        {
            metric: scale * fold_mean("cola-layers/screen", "score", arm, metric)
            for metric, scale in (("mcc", 100), ("aurc", 1000), ("nll", 10))
        }
        for arm in ("softmax, layers mixed, 50 epochs", "softmax, 50 epochs", "softmax, 20 epochs")
    )
    gain = tried[0]["mcc"] - mixed["mcc"], mixed["aurc"] - tried[0]["aurc"]
    assert f"{gain[0]:.1f} points of MCC more than with the mix" in TEXT
    assert f"an AURC that is {gain[1]:.1f} lower, both within noise" in TEXT
    pair = "softmax, 50 epochs − softmax, layers mixed, 50 epochs"
    assert not fold_sides("cola-layers/screen", "score", pair)[0] & {"mcc", "aurc"}
    few, many = (
        fold_mean("cola-layers/screen", "score", f"KEP-SVGP, {epochs} epochs", "mcc")
        for epochs in (20, 50)
    )
    assert f"pays with MCC ({100 * few:.2f} against {100 * many:.2f})" in TEXT
    few, many = (
        fold_mean("cola-layers/screen", "nll", f"KEP-SVGP, {epochs} epochs", "aurc")
        for epochs in (20, 50)
    )
    assert many < few
    further = [
        10 * fold_mean("cola-layers/screen", "last", arm, "nll")
        for arm in ("softmax, 50 epochs", "softmax, layers mixed, 50 epochs")
    ]
    assert "an NLL of {:.2f} at the last epoch against {:.2f}".format(*further) in TEXT
    for name in ("softmax", "KEP-SVGP"):
        for metric in ("aurc", "nll"):
            few, many = (
                fold_mean("cola-layers/screen", "score", f"{name}, {epochs} epochs", metric)
                for epochs in (20, 50)
            )
            assert few < many


def test_results_tell_what_layers_side_by_side_gave_on_the_test_set() -> None:
    by_score, by_nll, last = (
        gains(page.COLA_LAYERS + end, "kep", "msp") for end in page.RULES.values()
    )
    for found in (by_score, last):
        assert metrics(found, better=True, sure=True) == {"ece", "nll", "brier"}
        assert metrics(found, better=False, sure=False) == {"auroc"}
        assert metrics(found, better=False, sure=True) == set()
    assert sum(better for better, _ in by_nll.values()) == 2
    assert not any(sure for _, sure in by_nll.values())
    one, five = (means(page.COLA_LAYERS + "-last", row) for row in ("kep", "kep_ensembles"))
    paper = next(
        cell["paper"]
        for cell in page.table(page.COLA_LAYERS + "-last")["cells"]
        if (cell["row"], cell["column"]) == ("kep", "mcc")
    )
    told = f"an MCC of {one['mcc']:.2f}, where the paper has {paper['mean']:.2f}"
    assert f"{told}, and five such models {five['mcc']:.2f}" in TEXT
    tables = [
        (str(path.relative_to(RESULTS).with_suffix("")), row["key"])
        for path in RESULTS.glob("cola*/tables/table[17]-*.json")
        for row in page.table(str(path.relative_to(RESULTS)))["rows"]
    ]
    assert max(means(*each)["mcc"] for each in tables) == five["mcc"]
    rows = [row["key"] for row in page.table(page.COLA_LAYERS + "-last")["rows"]]
    assert five["auroc"] == min(means(page.COLA_LAYERS + "-last", row)["auroc"] for row in rows)
    many = means(page.COLA_LAYERS + "-nll", "deep_ensembles")
    told = "AURC {aurc:.2f}, AUROC {auroc:.2f}, FPR95 {fpr95:.2f}, NLL {nll:.2f} and a Brier score"
    assert f"{told.format(**many)} of {many['brier']:.2f}" in TEXT
    lower = dict.fromkeys(("aurc", "fpr95", "nll", "brier"), min)
    for metric, best in (lower | {"auroc": max}).items():
        assert best(means(*each)[metric] for each in tables) == many[metric]
    assert sum(page.seeds_ahead(page.COLA_LAYERS)["nll"]) == 2
    for end in page.RULES.values():
        side, mix = (means(path + end, "msp") for path in (page.COLA_LAYERS, page.COLA_FEATURES))
        assert side["mcc"] > mix["mcc"]
        assert side["aurc"] < mix["aurc"]
    for end, told in (
        ("-last", "({:.2f} against {:.2f})"),
        ("", "best score ({:.2f} against {:.2f})"),
    ):
        side, mix = (means(path + end, "kep") for path in (page.COLA_LAYERS, page.COLA_FEATURES))
        assert told.format(side["mcc"], mix["mcc"]) in TEXT
        assert all(side[metric] > mix[metric] for metric in ("mcc", "aurc", "ece", "nll", "brier"))
    told = "(AURC {:.2f} against {:.2f} by the best score)"
    assert told.format(side["aurc"], mix["aurc"]) in TEXT
    sampled, single = (means(page.COLA_LAYERS, row) for row in ("mc_dropout", "kep"))
    upwards = {"mcc", "auroc"}
    ahead = {m for m in SEVEN if (single[m] > sampled[m]) == (m in upwards)}
    assert ahead == {"mcc", "brier"}
    nll = []
    for end in ("", "-last"):
        kep, softmax = (
            means(page.COLA_LAYERS_ADDED + end, row) for row in ("kep_temperature", "temperature")
        )
        assert kep["ece"] > softmax["ece"]
        nll.append(f"{kep['nll']:.2f} against {softmax['nll']:.2f}")
        both = gains(page.COLA_LAYERS_ADDED + end, "kep_temperature", "temperature")
        assert both["nll"] == (True, False)
    assert f"({nll[0]}, {nll[1]})" in TEXT
    for end in page.RULES.values():
        one = means(page.COLA_LAYERS_ADDED + end, "kep_mc_dropout")
        five = means(page.COLA_LAYERS + end, "deep_ensembles")
        ahead = {metric for metric in ("nll", "ece", "aurc") if one[metric] < five[metric]}
        assert ahead == ({"nll", "ece"} if end == "-last" else set())
    pairs = [f"{one[metric]:.2f} against {five[metric]:.2f}" for metric in ("nll", "ece")]
    assert f"at the last epoch ({pairs[0]}, {pairs[1]})" in TEXT
    assert f"and {100 * (one['aurc'] / five['aurc'] - 1):.1f} % behind in AURC, and behind" in TEXT


def test_results_tell_what_two_sets_of_folds_have_in_common() -> None:
    calibrated = {"ece", "nll", "brier"}
    pairs = {page.COLA_FOLDS: page.FOLD_PAIRS[1], page.COLA_LAYERS_FOLDS: "KEP-SVGP − MSP"}
    for path, pair in pairs.items():
        is_first = path == page.COLA_FOLDS
        assert not fold_sides(path, "nll", pair)[0] & SEVEN
        for rule in ("score", "last"):
            ahead, behind, at_all = fold_sides(path, rule, pair)
            assert at_all >= calibrated | {"aurc", "auroc"}
            assert ahead >= calibrated
            assert ("aurc" in ahead) == (is_first or rule == "last")
            assert ("auroc" in ahead) == is_first
            assert not ahead & {"mcc", "fpr95"}
            assert behind == ({"mcc"} if is_first and rule == "last" else set())


def test_results_tell_which_setting_comes_nearer_to_five_by_the_best_nll() -> None:
    shares = {
        folder: [
            means(f"{added}-nll", "kep_mc_dropout")[metric]
            / means(f"{path}-nll", "deep_ensembles")[metric]
            for metric in ("aurc", "nll", "ece")
        ]
        for folder, path, added in (
            ("features", page.COLA_FEATURES, page.COLA_FEATURES_ADDED),
            ("living", page.COLA_LIVING, page.COLA_LIVING_ADDED),
        )
    }
    assert all(ours < theirs for ours, theirs in zip(*list(shares.values())[::-1], strict=True))
    aurc, nll, ece = (100 * (share - 1) for share in shares["living"])
    assert f"({aurc:.1f} and {nll:.1f} % behind in AURC and NLL, ahead in ECE)" in TEXT
    assert ece < 0


def test_decisions_tell_what_boldness_costs() -> None:
    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text().split())
    told = "those that call more than a fifth of the sentences unacceptable have the higher MCC"
    assert f"{told} and an ECE above 9, the others an ECE below 8" in decisions
    screen = page.table("cola-folds/screen")
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
        longer = page.table("cola-folds/screen25")["rules"][rule]["differences"]
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
    rows = {row["key"] for row in page.table(path)["rows"]} - {"msp"}
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


def test_the_layer_of_the_table_is_silent() -> None:
    """The last KL of every run in the tables, which the page says is that of the prior."""
    for path in (TABLE1, COLA_SMALL):
        (row,) = (row for row in page.table(path)["rows"] if row["key"] == "kep")
        assert len(row["runs"]) == 5
        for run in row["runs"]:
            history = (RESULTS / path).parents[1] / "runs" / run / "history.jsonl"
            assert abs(json.loads(history.read_text().splitlines()[-1])["train"]["kl"]) < 1e-4


IMDB = "imdb/tables/table1-imdb-small"


def test_results_tell_how_kep_stands_on_imdb() -> None:
    found = gains(IMDB, "kep", "msp")
    assert metrics(found, better=True, sure=True) == {"ece", "nll"}
    assert metrics(found, better=False, sure=True) == {"accuracy", "aurc", "auroc"}
    told = "ahead in ECE and NLL, behind in accuracy, AURC and AUROC, all five beyond noise"
    assert told in TEXT
    for other in ("temperature", "kfllla", "mc_dropout"):
        against = gains(IMDB, "kep", other)
        assert against["ece"] == against["nll"] == (False, True)
    sampled, single = means(IMDB, "mc_dropout"), means(IMDB, "kep")
    told = [f"{m.upper()} {sampled[m]:.2f} against {single[m]:.2f}" for m in ("ece", "nll")]
    assert f"({', '.join(told)}, both beyond noise)" in TEXT
    for row in ("msp", "kep"):
        (below,) = (
            cell["paper"]["mean"] - 100 * cell["mean"]
            for cell in page.table(IMDB)["cells"]
            if (cell["row"], cell["column"]) == (row, "accuracy")
        )
        assert 2 <= below <= 3.2


def test_results_tell_how_one_model_stands_to_five_on_imdb() -> None:
    five = means(page.IMDB_FIVE, "deep_ensembles")
    one, softmax = (
        means("imdb/tables/table7-imdb-small", row) for row in ("kep_temperature", "temperature")
    )
    told = "ECE {ece:.2f}, NLL {nll:.2f} and AURC {aurc:.2f}".format(**five)
    assert f"Five softmax models together have {told}" in TEXT
    assert "has {ece:.2f}, {nll:.2f} and {aurc:.2f}".format(**one) in TEXT
    assert "one softmax model with it {ece:.2f}, {nll:.2f} and {aurc:.2f}".format(**softmax) in TEXT
    assert one["ece"] < five["ece"]
    assert min(one["nll"], softmax["nll"]) > five["nll"]
    assert min(one["aurc"], softmax["aurc"]) > five["aurc"]
    assert len(page.table(page.IMDB_FIVE)["rows"][0]["runs"]) == 5


def test_results_tell_what_the_scale_of_embeddings_did_to_ensembles() -> None:
    one, five = means(IMDB, "msp"), means(page.IMDB_SCALE1_FIVE, "deep_ensembles")
    assert one["accuracy"] > five["accuracy"]
    assert one["aurc"] < five["aurc"]
    assert one["nll"] > five["nll"]
    assert one["ece"] > five["ece"]
    noisy, small = (
        means(path, "deep_ensembles")["accuracy"] - means(path, "msp")["accuracy"]
        for path in (page.IMDB_SCALE1_FIVE, page.IMDB_FIVE)
    )
    told = f"five gain {noisy:.1f} points of accuracy over one with it, {small:.1f} without"
    assert told in TEXT
    for suffix in page.RULES.values():
        found = gains(page.IMDB_SCALE1 + suffix, "kep", "msp")
        assert metrics(found, better=False, sure=True) == set()


def test_three_rules_are_one_on_imdb() -> None:
    for run in (RESULTS / "imdb" / "runs").iterdir():
        lines = (run / "history.jsonl").read_text().splitlines()
        values = [json.loads(line)["val"] for line in lines]
        # the first of equal scores is kept
        assert max(range(3), key=lambda epoch: values[epoch]["accuracy"]) == 2
        assert min(values, key=lambda val: val["nll"]) is values[2]


CIFAR10 = "cifar10/tables/table1-cifar10-small"


def metrics(found: dict[str, tuple[bool, bool]], *, better: bool, sure: bool) -> set[str]:
    return {metric for metric, gain in found.items() if gain == (better, sure)}


def test_paper_has_kep_ahead_of_softmax_everywhere() -> None:
    # the folds' table compares methods, and repeats no claims of the paper
    for path in {*page.TABLE1.values(), *page.MAIN.values()} - set(page.FOLDS):
        claims = page.table(path)["claims"]
        pairs = [c for c in claims if {c["better"], c["worse"]} == {"kep", "msp"}]
        assert [claim["better"] for claim in pairs] == ["kep"] * 7


def test_results_tell_how_kep_stands_on_cifar10() -> None:
    assert {"ece"} == metrics(gains(CIFAR10, "kep", "msp"), better=False, sure=False)
    six = {"accuracy", "aurc", "auroc", "fpr95", "nll", "brier"}
    for suffix in page.RULES.values():
        assert metrics(gains(CIFAR10 + suffix, "kep", "msp"), better=True, sure=True) == six
    ensembles = gains(CIFAR10, "kep_ensembles", "deep_ensembles")
    four = {"accuracy", "aurc", "nll", "brier"}
    assert metrics(ensembles, better=True, sure=True) == four
    assert "six of the seven metrics, all six beyond noise" in TEXT
    assert all(all(page.seeds_ahead(CIFAR10)[metric]) for metric in six)
    one, many = means(CIFAR10, "kep"), means(CIFAR10, "deep_ensembles")
    told = ", ".join(f"{m.upper()} {one[m]:.2f} against {many[m]:.2f}" for m in ("aurc", "nll"))
    assert f"{told}, though ECE {one['ece']:.2f} against {many['ece']:.2f}" in TEXT
    svdkl = gains(CIFAR10, "kep", "svdkl")
    assert metrics(svdkl, better=False, sure=True) == {"accuracy", "nll"}
    assert metrics(svdkl, better=True, sure=True) == {"ece"}


def test_results_tell_how_kep_stands_under_corruption() -> None:
    found = gains("cifar10/tables/table2-cifar10-small", "kep", "msp")
    assert metrics(found, better=True, sure=True) == {"nll", "brier"}
    assert metrics(found, better=True, sure=False) == {"accuracy", "aurc", "auroc", "fpr95"}
    svdkl = gains("cifar10/tables/table2-cifar10-small", "kep", "svdkl")
    behind = {metric for metric, (better, _) in svdkl.items() if not better}
    assert behind == {"accuracy", "aurc", "nll", "brier"}
    msp, dropout = (
        means("cifar10/tables/table2-cifar10-small", row) for row in ("msp", "mc_dropout")
    )
    assert abs(msp["accuracy"] - dropout["accuracy"]) < 0.1
    assert abs(msp["aurc"] - dropout["aurc"]) < 1


def test_results_tell_how_branches_are_best_merged() -> None:
    found = gains("cifar10/tables/table9-cifar10-small", "concat/10", "add/10")
    assert [better for better, _ in found.values()] == [True] * 7
    assert sum(sure for _, sure in found.values()) == 5


def test_results_tell_how_foreign_images_are_told_apart() -> None:
    path = "cifar10/tables/table3-cifar10-small"
    found = gains(path, "kep", "msp")
    svhn = {metric for metric in found if metric.endswith("svhn")}
    assert metrics(found, better=False, sure=True) == svhn
    single = ("msp", "mc_dropout", "kfllla", "kep")
    for metric in svhn:
        assert all(means(path, "svdkl")[metric] > means(path, row)[metric] for row in single)
    rows = (*single, "deep_ensembles", "kep_ensembles")
    for metric in (metric for metric in found if metric.endswith("cifar100")):
        assert all(means(path, "svdkl")[metric] < means(path, row)[metric] for row in rows)


def test_dual_projection_was_chosen_on_validation_data() -> None:
    """As the page tells it: the first four epochs of the first seed, against softmax's."""
    runs = RESULTS / "cifar10" / "runs"
    for epoch in range(4):
        kep, msp = (
            json.loads((run / "history.jsonl").read_text().splitlines()[epoch])["val"]
            for pattern in ("cifar10-kep-s0-83093e6e1a", "cifar10-msp-s0-*")
            for run in runs.glob(pattern)
        )
        assert kep["accuracy"] > msp["accuracy"]
        assert kep["nll"] < msp["nll"]
    landmarks = "cifar10-landmark/tables/table1-cifar10-small"
    behind = means(landmarks, "msp")["accuracy"] - means(landmarks, "kep")["accuracy"]
    assert round(behind) == 4


def test_results_tell_the_sizes_of_the_sets() -> None:
    for data, told in (
        ("cola", "{train:,} sentences to train on, {val} to choose epochs"),
        (
            "imdb",
            "Trained on {train:,} reviews, chosen on {val:,}, measured on the official {test:,}",
        ),
    ):
        for run in (RESULTS / data / "runs").iterdir():
            sizes = json.loads((run / "run.json").read_text())["splits"]["sizes"]
            assert told.format(**sizes) in TEXT


def test_results_tell_what_the_pair_of_branches_gave() -> None:
    left, right = (gains(page.COLA_PAIRS, "kep_er", one) for one in ("kep_ee", "kep_rr"))
    both = {m for m in left if left[m][0] and right[m][0]}
    assert both == {"aurc", "auroc", "ece", "nll", "brier"}
    assert metrics(right, better=True, sure=True) == {"aurc", "ece", "nll", "brier"}
    assert metrics(left, better=True, sure=True) == set()
    assert metrics(left, better=False, sure=True) == {"mcc"}
    rows = page.table(page.COLA_PAIRS)["rows"]
    for row in rows:
        assert len(row["runs"]) == 5
        for other in ("msp", "kep"):
            pair, single = means(page.COLA_PAIRS, row["key"]), means(COLA_SMALL, other)
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


def test_results_tell_what_the_low_rank_map_costs() -> None:
    found = gains("cifar10/tables/table6-cifar10-small", "concat", "concat_lowrank")
    assert not found.pop("forward_seconds")[1]
    assert [better for better, _ in found.values()] == [True] * 7
    assert metrics(found, better=True, sure=True) == {"accuracy", "aurc", "nll", "brier"}


def test_results_tell_what_faded_with_a_low_rank_map() -> None:
    path = "cifar10/tables/table6-cifar10-small"
    kl, accuracy = {}, {}
    for row in page.table(path)["rows"]:
        runs = [RESULTS / "cifar10" / "runs" / run for run in row["runs"]]
        lines = [(run / "history.jsonl").read_text().splitlines()[-1] for run in runs]
        kl[row["key"]] = [json.loads(line)["train"]["kl"] for line in lines]
        files = [json.loads((run / "metrics.json").read_text()) for run in runs]
        accuracy[row["key"]] = [100 * file["score"]["kep"]["test"]["accuracy"] for file in files]
    assert [f"{value:.1f}" for value in kl["concat_lowrank"][:2]] == ["0.8", "0.8"]
    told = f"{kl['concat_lowrank'][2]:.0f} in the third and {min(kl['concat']):.0f} to"
    assert f"against {told} {max(kl['concat']):.0f} with the full map" in TEXT
    low, full = accuracy["concat_lowrank"][2], accuracy["concat"][2]
    assert f"an accuracy of {low:.1f} % where the full map has {full:.1f} %" in TEXT


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
    for suffix in page.RULES.values():
        assert not all(better for better, _ in gains(TABLE1 + suffix, "kep", "msp").values())
    five = means(TABLE1 + "-nll", "deep_ensembles")
    assert f"the five have {five['nll']:.2f} and {five['ece']:.2f}" in TEXT
    one = means("cola/tables/table7-cola-paper", "kep_temperature")
    assert five["nll"] < one["nll"]
    assert five["ece"] < one["ece"]
    scaled = [means(TABLE1 + suffix, "temperature")["nll"] for suffix in page.RULES.values()]
    assert "an NLL of {:.2f}, {:.2f} and {:.2f} under the three rules".format(*scaled) in TEXT
