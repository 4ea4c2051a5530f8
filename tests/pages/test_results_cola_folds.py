"""What docs/results-cola.md says of held-out sentences is what the files in `results/` say."""

from functools import partial

import evidence
from pages.told import README, RESULTS, SEVEN, TEXT, fold_mean, fold_sides, gains, means, metrics


def test_results_tell_what_the_folds_gave() -> None:
    found = evidence.table(evidence.COLA_FOLDS)
    assert sum(found["folds"].values()) == 7696
    assert {arm["seeds"] for arm in found["arms"] if "authors" in arm["name"]} == {3}

    def sides(rule: str, pair: str) -> tuple[set[str], set[str], set[str]]:
        return fold_sides(evidence.COLA_FOLDS, rule, pair)

    authors, living = evidence.FOLD_PAIRS
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
    kl = [value for arm, values in found["last kl"].items() if "authors" in arm for value in values]
    assert f"a KL of {min(kl):.1f} to {max(kl):.1f} at the last epoch" in TEXT
    half, _, _ = sides("score", "MSP, dropout 0.5 − MSP")
    assert half == {"accuracy", "mcc", "aurc", "brier"}

    mean = partial(fold_mean, evidence.COLA_FOLDS)
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
    folds = evidence.table(evidence.COLA_LAYERS_FOLDS)["folds"]
    assert sum(folds.values()) == 7696
    last, by_score, by_nll = (
        fold_sides(evidence.COLA_LAYERS_FOLDS, rule, "KEP-SVGP − MSP")
        for rule in ("last", "score", "nll")
    )
    assert last == (calibrated | {"aurc", "accuracy"}, set(), SEVEN - {"fpr95"} | {"accuracy"})
    assert by_score == (calibrated, set(), SEVEN - {"mcc", "fpr95"})
    assert by_nll == (set(), set(), {"mcc", "fpr95"})
    for metric, scale in (("nll", 10), ("brier", 100), ("ece", 100)):
        told = " against ".join(
            f"{scale * fold_mean(evidence.COLA_LAYERS_FOLDS, 'last', arm, metric):.2f}"
            for arm in ("… + TS", "Temperature Scaling")
        )
        assert told in TEXT
    scaled = {
        rule: {
            metric: (
                fold_mean(evidence.COLA_LAYERS_FOLDS, rule, "… + TS", metric)
                < fold_mean(evidence.COLA_LAYERS_FOLDS, rule, "Temperature Scaling", metric)
            )
            for metric in ("nll", "brier", "ece", "aurc")
        }
        for rule in ("score", "nll")
    }
    assert all(scaled["score"].values())
    assert not any(scaled["nll"][metric] for metric in ("nll", "brier", "aurc"))
    kl = evidence.table(evidence.COLA_LAYERS_FOLDS)["last kl"]["KEP-SVGP"]
    assert f"with a KL of {min(kl):.1f} to {max(kl):.1f}" in TEXT
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


def test_results_tell_what_mc_dropout_gave_on_folds() -> None:
    calibrated = {"ece", "nll", "brier"}
    _, alone, both = evidence.ASKED_PAIRS
    last, by_score, by_nll = (
        fold_sides(evidence.COLA_LAYERS_FOLDS, rule, both) for rule in ("last", "score", "nll")
    )
    assert last[2] & SEVEN == by_score[2] & SEVEN == SEVEN - {"mcc"}
    assert last[0] == calibrated | {"auroc", "aurc"}
    assert by_score[0] == calibrated | {"auroc"}
    assert last[1] == set()
    assert by_score[1] == {"mcc"}
    assert by_nll[2] & SEVEN == {"fpr95"}
    for rule in ("last", "score"):
        found = evidence.table(evidence.COLA_LAYERS_FOLDS)["rules"][rule]["differences"][alone]
        assert abs(100 * found["fpr95"]["difference"]) < 0.2
        ahead, behind, at_all = fold_sides(evidence.COLA_LAYERS_FOLDS, rule, alone)
        assert ahead & SEVEN == calibrated | {"auroc", "aurc"}
        assert "mcc" not in at_all
        assert behind == set()
    assert fold_sides(evidence.COLA_LAYERS_FOLDS, "nll", alone)[2] & SEVEN == {"fpr95"}


def test_results_tell_what_the_folds_gave_that_had_chosen_nothing() -> None:
    calibrated, fresh = {"ece", "nll", "brier"}, "cola-layers/fresh"
    assert sum(evidence.table(fresh)["folds"].values()) == 4617
    assert set(evidence.table(fresh)["folds"]) == {"2", "3", "4"}
    assert set(evidence.table("cola-layers/screen")["folds"]) == {"0", "1"}
    plain, alone, both = (
        {rule: fold_sides(fresh, rule, pair) for rule in ("last", "score")}
        for pair in evidence.ASKED_PAIRS
    )
    assert plain["last"][2] & SEVEN == SEVEN - {"fpr95"}
    assert alone["last"][2] & SEVEN == both["last"][2] & SEVEN == SEVEN
    assert both["last"][0] & SEVEN == calibrated
    assert alone["last"][0] & SEVEN == calibrated | {"aurc"}
    for pair in (plain, alone, both):
        ahead, behind, at_all = pair["score"]
        assert ahead == calibrated
        assert "mcc" not in at_all
        assert behind == ({"mcc", "accuracy"} if pair is both else set())
    level = evidence.table(fresh)["rules"]["score"]["differences"][evidence.ASKED_PAIRS[0]]["aurc"]
    assert (
        f"AURC is within it either way ({1000 * level['difference']:+.1f} without MC dropout)"
        in TEXT
    )


def test_results_tell_what_layers_side_by_side_gave_on_the_test_set() -> None:
    by_score, by_nll, last = (
        gains(evidence.COLA_LAYERS + end, "kep", "msp") for end in evidence.RULES.values()
    )
    for found in (by_score, last):
        assert metrics(found, better=True, sure=True) == {"ece", "nll", "brier"}
        assert metrics(found, better=False, sure=False) == {"auroc"}
        assert metrics(found, better=False, sure=True) == set()
    assert sum(better for better, _ in by_nll.values()) == 2
    assert not any(sure for _, sure in by_nll.values())
    one, five = (means(evidence.COLA_LAYERS + "-last", row) for row in ("kep", "kep_ensembles"))
    paper = next(
        cell["paper"]
        for cell in evidence.table(evidence.COLA_LAYERS + "-last")["cells"]
        if (cell["row"], cell["column"]) == ("kep", "mcc")
    )
    told = f"an MCC of {one['mcc']:.2f}, where the paper has {paper['mean']:.2f}"
    assert f"{told}, and five such models {five['mcc']:.2f}" in TEXT
    tables = [
        (str(path.relative_to(RESULTS).with_suffix("")), row["key"])
        for path in RESULTS.glob("cola*/tables/table[17]-*.json")
        for row in evidence.table(str(path.relative_to(RESULTS)))["rows"]
    ]
    assert max(means(*each)["mcc"] for each in tables) == five["mcc"]
    rows = [row["key"] for row in evidence.table(evidence.COLA_LAYERS + "-last")["rows"]]
    assert five["auroc"] == min(means(evidence.COLA_LAYERS + "-last", row)["auroc"] for row in rows)
    many = means(evidence.COLA_LAYERS + "-nll", "deep_ensembles")
    told = "AURC {aurc:.2f}, AUROC {auroc:.2f}, FPR95 {fpr95:.2f}, NLL {nll:.2f} and a Brier score"
    assert f"{told.format(**many)} of {many['brier']:.2f}" in TEXT
    lower = dict.fromkeys(("aurc", "fpr95", "nll", "brier"), min)
    for metric, best in (lower | {"auroc": max}).items():
        assert best(means(*each)[metric] for each in tables) == many[metric]
    assert sum(evidence.seeds_ahead(evidence.COLA_LAYERS)["nll"]) == 2
    for end in evidence.RULES.values():
        side, mix = (
            means(path + end, "msp") for path in (evidence.COLA_LAYERS, evidence.COLA_FEATURES)
        )
        assert side["mcc"] > mix["mcc"]
        assert side["aurc"] < mix["aurc"]
    for end, told in (
        ("-last", "({:.2f} against {:.2f})"),
        ("", "best score ({:.2f} against {:.2f})"),
    ):
        side, mix = (
            means(path + end, "kep") for path in (evidence.COLA_LAYERS, evidence.COLA_FEATURES)
        )
        assert told.format(side["mcc"], mix["mcc"]) in TEXT
        assert all(side[metric] > mix[metric] for metric in ("mcc", "aurc", "ece", "nll", "brier"))
    told = "(AURC {:.2f} against {:.2f} by the best score)"
    assert told.format(side["aurc"], mix["aurc"]) in TEXT
    sampled, single = (means(evidence.COLA_LAYERS, row) for row in ("mc_dropout", "kep"))
    upwards = {"mcc", "auroc"}
    ahead = {m for m in SEVEN if (single[m] > sampled[m]) == (m in upwards)}
    assert ahead == {"mcc", "brier"}
    nll = []
    for end in ("", "-last"):
        kep, softmax = (
            means(evidence.COLA_LAYERS_ADDED + end, row)
            for row in ("kep_temperature", "temperature")
        )
        assert kep["ece"] > softmax["ece"]
        nll.append(f"{kep['nll']:.2f} against {softmax['nll']:.2f}")
        both = gains(evidence.COLA_LAYERS_ADDED + end, "kep_temperature", "temperature")
        assert both["nll"] == (True, False)
    assert f"({nll[0]}, {nll[1]})" in TEXT
    for end in evidence.RULES.values():
        one = means(evidence.COLA_LAYERS_ADDED + end, "kep_mc_dropout")
        five = means(evidence.COLA_LAYERS + end, "deep_ensembles")
        ahead = {metric for metric in ("nll", "ece", "aurc") if one[metric] < five[metric]}
        assert ahead == ({"nll", "ece"} if end == "-last" else set())
    pairs = [f"{one[metric]:.2f} against {five[metric]:.2f}" for metric in ("nll", "ece")]
    assert f"at the last epoch ({pairs[0]}, {pairs[1]})" in TEXT
    assert f"and {100 * (one['aurc'] / five['aurc'] - 1):.1f} % behind in AURC, and behind" in TEXT


def test_results_tell_what_two_sets_of_folds_have_in_common() -> None:
    calibrated = {"ece", "nll", "brier"}
    pairs = {
        evidence.COLA_FOLDS: evidence.FOLD_PAIRS[1],
        evidence.COLA_LAYERS_FOLDS: "KEP-SVGP − MSP",
    }
    for path, pair in pairs.items():
        is_first = path == evidence.COLA_FOLDS
        assert not fold_sides(path, "nll", pair)[0] & SEVEN
        for rule in ("score", "last"):
            ahead, behind, at_all = fold_sides(path, rule, pair)
            assert at_all >= calibrated | {"aurc", "auroc"}
            assert ahead >= calibrated
            assert ("aurc" in ahead) == (is_first or rule == "last")
            assert ("auroc" in ahead) == is_first
            assert not ahead & {"mcc", "fpr95"}
            assert behind == ({"mcc"} if is_first and rule == "last" else set())


def test_results_tell_what_folds_gave_from_features_alone() -> None:
    path, fresh = evidence.COLA_FEATURES_FOLDS, evidence.COLA_FEATURES_FRESH
    plain, _, both = evidence.ASKED_PAIRS
    calibrated = {"ece", "nll", "brier"}
    five = calibrated | {"mcc", "aurc"}
    assert evidence.table(path)["config"] == "cola-features"
    assert all(not arm["settings"] and arm["seeds"] == 1 for arm in evidence.table(path)["arms"])
    assert sum(evidence.table(path)["folds"].values()) == 7696
    assert set(evidence.table(fresh)["folds"]) == {"1", "2", "3", "4"}
    assert sum(evidence.table(fresh)["folds"].values()) == 6156

    score, nll, last = (fold_sides(path, rule, plain) for rule in ("score", "nll", "last"))
    assert score == (five | {"accuracy"}, set(), SEVEN | {"accuracy"})
    assert "**By the best validation score, the paper's rule, KEP-SVGP is ahead of softmax" in TEXT
    assert last[:2] == (five | {"accuracy"}, set())
    assert nll == (
        {"mcc", "aurc", "nll", "brier", "accuracy"}, set(), SEVEN - {"fpr95", "ece"} | {"accuracy"}
    )  # fmt: skip
    found = fold_sides(path, "score", both)
    assert found == (calibrated | {"aurc", "auroc", "accuracy"}, set(), SEVEN | {"accuracy"})
    differences = {
        rule: evidence.table(path)["rules"][rule]["differences"][plain] for rule in ("nll", "last")
    }
    level = [
        differences["last"]["auroc"],
        differences["last"]["fpr95"],
        differences["nll"]["auroc"],
    ]
    # told of less than a quarter of a point
    assert all(abs(each["difference"]) < 0.0025 for each in level)

    score = fold_sides(fresh, "score", plain)
    assert score == (five | {"accuracy"}, set(), SEVEN - {"fpr95"} | {"accuracy"})
    behind = evidence.table(fresh)["rules"]["score"]["differences"][plain]["fpr95"]["difference"]
    assert f"FPR95 is behind, by {100 * behind:.1f} and within noise, the other six ahead" in TEXT
    ahead = evidence.table(path)["rules"]["score"]["differences"][plain]["fpr95"]["difference"]
    assert f"five beyond noise, FPR95 by {-100 * ahead:.1f};" in README
    assert f"FPR95 is behind by {100 * behind:.1f}, within noise" in README
    assert fold_sides(fresh, "score", both)[1:] == (set(), SEVEN | {"accuracy"})
    assert not fold_sides(fresh, "nll", plain)[0]
    level = evidence.table(fresh)["rules"]["nll"]["differences"][plain]["mcc"]["difference"]
    assert f"MCC is level (−{-100 * level:.1f})" in TEXT
    scaled = {
        (arm, metric): fold_mean(path, "score", arm, metric)
        for arm in ("KEP-SVGP", "… + TS", "Temperature Scaling")
        for metric in calibrated
    }
    for metric in calibrated:
        assert scaled["Temperature Scaling", metric] < scaled["KEP-SVGP", metric]
    pairs = [
        [scale * scaled[arm, metric] for arm in ("… + TS", "Temperature Scaling")]
        for metric, scale in (("nll", 10), ("ece", 100), ("brier", 100))
    ]
    assert "the lower NLL ({:.2f} against {:.2f}) and Brier score".format(*pairs[0]) in TEXT
    assert "the higher ECE ({:.2f} against {:.2f})".format(*pairs[1]) in TEXT
    assert pairs[2][0] < pairs[2][1]
