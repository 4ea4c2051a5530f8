"""What docs/results.md says of IMDB is what the files in `results/` say."""

import json
from statistics import mean

import evidence
from pages.told import RESULTS, TEXT, gains, means, metrics


def test_results_tell_how_kep_stands_on_imdb() -> None:
    found = gains(evidence.IMDB, "kep", "msp")
    assert metrics(found, better=True, sure=True) == {"ece", "nll"}
    assert metrics(found, better=False, sure=True) == {"accuracy", "aurc", "auroc"}
    told = "ahead in ECE and NLL, behind in accuracy, AURC and AUROC, all five beyond noise"
    assert told in TEXT
    for other in ("temperature", "kfllla", "mc_dropout"):
        against = gains(evidence.IMDB, "kep", other)
        assert against["ece"] == against["nll"] == (False, True)
    sampled, single = means(evidence.IMDB, "mc_dropout"), means(evidence.IMDB, "kep")
    told = [f"{m.upper()} {sampled[m]:.2f} against {single[m]:.2f}" for m in ("ece", "nll")]
    assert f"({', '.join(told)}, both beyond noise)" in TEXT
    for row in ("msp", "kep"):
        (below,) = (
            cell["paper"]["mean"] - 100 * cell["mean"]
            for cell in evidence.table(evidence.IMDB)["cells"]
            if (cell["row"], cell["column"]) == (row, "accuracy")
        )
        assert 2 <= below <= 3.2


def test_results_tell_how_sgpa_stands_on_imdb() -> None:
    sgpa, softmax, kep = (
        means(path, row)
        for path, row in (
            (evidence.IMDB_SGPA, "sgpa"),
            (evidence.IMDB, "msp"),
            (evidence.IMDB, "kep"),
        )
    )
    rising = {"accuracy", "auroc"}
    ahead = [
        {m for m in sgpa if (sgpa[m] > other[m] if m in rising else sgpa[m] < other[m])}
        for other in (kep, softmax)
    ]
    assert ahead == [set(sgpa), {"fpr95", "ece", "nll", "brier"}]
    assert len(sgpa) == 7
    cells = {
        (path, cell["row"], cell["column"]): cell
        for path in (evidence.IMDB_SGPA, evidence.IMDB)
        for cell in evidence.table(path)["cells"]
    }
    for metric in ("accuracy", "aurc", "auroc"):
        ours, theirs = (
            cells[evidence.IMDB_SGPA, "sgpa", metric],
            cells[evidence.IMDB, "msp", metric],
        )
        assert abs(ours["mean"] - theirs["mean"]) < theirs["sd"]
    for metric in sgpa:
        printed = [
            cells[path, row, metric]["paper"]["mean"]
            for path, row in ((evidence.IMDB, "kep"), (evidence.IMDB_SGPA, "sgpa"))
        ]
        assert (printed[0] > printed[1]) == (metric in rising)
    seconds = [
        mean(epoch["seconds"] for run in runs for epoch in evidence.history(run))
        for runs in (
            [
                f"{folder}/runs/{run.name}"
                for run in (RESULTS / folder / "runs").glob(f"imdb-{method}-*")
            ]
            for folder, method in (("imdb-sgpa", "sgpa"), ("imdb", "msp"))
        )
    ]
    assert f"an epoch took {seconds[0] / seconds[1]:.1f} times as long as with softmax" in TEXT
    for run in (RESULTS / "imdb-sgpa" / "runs").iterdir():
        values = [epoch["val"] for epoch in evidence.history(f"imdb-sgpa/runs/{run.name}")]
        assert len(values) == 3
        assert max(values, key=lambda val: val["accuracy"]) is values[2]


def test_results_tell_how_one_model_stands_to_five_on_imdb() -> None:
    five = means(evidence.IMDB_FIVE, "deep_ensembles")
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
    assert len(evidence.table(evidence.IMDB_FIVE)["rows"][0]["runs"]) == 5


def test_results_tell_what_the_scale_of_embeddings_did_to_ensembles() -> None:
    one, five = means(evidence.IMDB, "msp"), means(evidence.IMDB_SCALE1_FIVE, "deep_ensembles")
    assert one["accuracy"] > five["accuracy"]
    assert one["aurc"] < five["aurc"]
    assert one["nll"] > five["nll"]
    assert one["ece"] > five["ece"]
    noisy, small = (
        means(path, "deep_ensembles")["accuracy"] - means(path, "msp")["accuracy"]
        for path in (evidence.IMDB_SCALE1_FIVE, evidence.IMDB_FIVE)
    )
    told = f"five gain {noisy:.1f} points of accuracy over one with it, {small:.1f} without"
    assert told in TEXT
    for suffix in evidence.RULES.values():
        found = gains(evidence.IMDB_SCALE1 + suffix, "kep", "msp")
        assert metrics(found, better=False, sure=True) == set()


def test_three_rules_are_one_on_imdb() -> None:
    for run in (RESULTS / "imdb" / "runs").iterdir():
        lines = (run / "history.jsonl").read_text().splitlines()
        values = [json.loads(line)["val"] for line in lines]
        # the first of equal scores is kept
        assert max(range(3), key=lambda epoch: values[epoch]["accuracy"]) == 2
        assert min(values, key=lambda val: val["nll"]) is values[2]


def test_results_tell_what_eight_epochs_gave_on_imdb() -> None:
    five = {"accuracy", "aurc", "ece", "nll", "brier"}
    seven = five | {"auroc", "fpr95"}
    by_score, by_nll, last = (
        gains(evidence.IMDB_EIGHT + suffix, "kep", "msp") for suffix in evidence.RULES.values()
    )
    for found in (by_score, by_nll):
        assert metrics(found, better=True, sure=True) == five
        assert metrics(found, better=False, sure=True) == set()
    assert all(better for better, _ in by_nll.values())
    assert metrics(last, better=True, sure=True) == seven
    assert "**at the last epoch all seven are ahead, all beyond noise**" in TEXT
    level = {
        column: evidence.intervals(evidence.IMDB_EIGHT)["kep", "msp"][column][0]
        for column in ("auroc", "fpr95")
    }
    assert all(abs(difference) < 0.2 for difference in level.values())
    one, three = (
        {
            rule: gains(evidence.IMDB_EIGHT + suffix, row, "deep_ensembles")
            for rule, suffix in evidence.RULES.items()
        }
        for row in ("kep", "kep_ensembles")
    )
    assert all(better for better, _ in one["last epoch"].values())
    assert metrics(one["last epoch"], better=True, sure=True) == five
    assert metrics(one["best validation NLL"], better=False, sure=True) == seven
    assert metrics(three["best validation NLL"], better=False, sure=True) == five
    assert metrics(three["best validation NLL"], better=True, sure=True) == set()


def test_results_tell_what_speaks_against_eight_epochs_on_imdb() -> None:
    short = means(evidence.IMDB, "msp")
    told = "an accuracy of {accuracy:.2f} and an AURC of {aurc:.2f}, better".format(**short)
    assert told in TEXT
    rows = [
        means(evidence.IMDB_EIGHT + suffix, row)
        for suffix in evidence.RULES.values()
        for row in ("msp", "kep")
    ]
    assert all(row["accuracy"] < short["accuracy"] and row["aurc"] > short["aurc"] for row in rows)
    best = max(row["accuracy"] for row in rows[1::2]), min(row["aurc"] for row in rows[1::2])
    assert "(KEP-SVGP at best {:.2f} and {:.2f})".format(*best) in TEXT
    for suffix in evidence.RULES.values():
        scaled, kep = (means(evidence.IMDB_EIGHT + suffix, row) for row in ("temperature", "kep"))
        assert scaled["nll"] < kep["nll"]
        assert scaled["ece"] < kep["ece"]
        assert scaled["aurc"] > kep["aurc"]
    kep, softmax = (
        means(evidence.IMDB_EIGHT_ADDED, row) for row in ("kep_temperature", "temperature")
    )
    told = "ECE ({:.2f} against {:.2f}), NLL ({:.2f} against {:.2f})"
    assert told.format(kep["ece"], softmax["ece"], kep["nll"], softmax["nll"]) in TEXT
    both = gains(evidence.IMDB_EIGHT_ADDED, "kep_temperature", "temperature")
    ahead = {"accuracy", "aurc", "ece", "nll", "brier"}
    assert metrics(both, better=True, sure=True) == ahead
    runs = (RESULTS / "imdb-eight" / "runs").glob("*-kep-*")
    kl = [evidence.history(f"imdb-eight/runs/{run.name}")[-1]["train"]["kl"] for run in runs]
    assert len(kl) == 3
    assert f"(its KL is {min(kl):.0f} to {max(kl):.0f} at the end)" in TEXT
    for run in (RESULTS / "imdb-eight" / "runs").iterdir():
        assert len(evidence.history(f"imdb-eight/runs/{run.name}")) == 8
