"""What docs/results.md says of CIFAR-10 is what the files in `results/` say."""

import json

import evidence
from pages.told import RESULTS, TEXT, gains, means, metrics


def test_results_tell_how_kep_stands_on_cifar10() -> None:
    assert {"ece"} == metrics(gains(evidence.CIFAR10, "kep", "msp"), better=False, sure=False)
    six = {"accuracy", "aurc", "auroc", "fpr95", "nll", "brier"}
    for suffix in evidence.RULES.values():
        assert (
            metrics(gains(evidence.CIFAR10 + suffix, "kep", "msp"), better=True, sure=True) == six
        )
    ensembles = gains(evidence.CIFAR10, "kep_ensembles", "deep_ensembles")
    four = {"accuracy", "aurc", "nll", "brier"}
    assert metrics(ensembles, better=True, sure=True) == four
    assert "six of the seven metrics, all six beyond noise" in TEXT
    assert all(all(evidence.seeds_ahead(evidence.CIFAR10)[metric]) for metric in six)
    one, many = means(evidence.CIFAR10, "kep"), means(evidence.CIFAR10, "deep_ensembles")
    told = ", ".join(f"{m.upper()} {one[m]:.2f} against {many[m]:.2f}" for m in ("aurc", "nll"))
    assert f"{told}, though ECE {one['ece']:.2f} against {many['ece']:.2f}" in TEXT
    svdkl = gains(evidence.CIFAR10, "kep", "svdkl")
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


def test_results_tell_what_the_low_rank_map_costs() -> None:
    found = gains("cifar10/tables/table6-cifar10-small", "concat", "concat_lowrank")
    assert not found.pop("forward_seconds")[1]
    assert [better for better, _ in found.values()] == [True] * 7
    assert metrics(found, better=True, sure=True) == {"accuracy", "aurc", "nll", "brier"}


def test_results_tell_what_faded_with_a_low_rank_map() -> None:
    path = "cifar10/tables/table6-cifar10-small"
    kl, accuracy = {}, {}
    for row in evidence.table(path)["rows"]:
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
