"""Compares KEP-SVGP models asked through MC dropout with softmax ones, which no table does.

    python results/differences.py RUNS OUT

RUNS is where `kepsvgp reproduce table1 table7` has left runs of CoLA, measured under each rule
for the epoch; OUT gets a `differences.json`.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from kepsvgp import Prediction
from kepsvgp.config.file import load_config
from kepsvgp.data import load_benchmark
from kepsvgp.files import write_json
from kepsvgp.metrics import paired_bootstrap
from kepsvgp.runs.folder import CHECKPOINTS, RunFolder, library_versions

COLUMNS = ("mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier")


def probabilities(folders: list[Path], rule: str, method: str) -> Tensor:
    """What each run says of the test set."""
    runs = [RunFolder(folder) for folder in folders]
    files = [(run.predictions_file(rule, method, "test"), run.identity()) for run in runs]
    return torch.stack([Prediction.load(file, run=name).probs for file, name in files])


def main(runs: Path, out: Path) -> None:
    """Differences with their intervals under each rule."""
    kep, msp = (sorted(runs.glob(f"cola-{method}-s*")) for method in ("kep", "msp"))
    if not len(kep) == len(msp) == 5:
        sys.exit(f"{runs} must have five runs of each method; it has {len(kep)} and {len(msp)}.")
    labels = load_benchmark(load_config(kep[0] / "config.toml").data).test.labels
    rules = {}
    for rule in CHECKPOINTS:
        ours = probabilities(kep, rule, "kep+mc_dropout")
        softmax = probabilities(msp, rule, "msp")
        others = {"MSP": softmax, "Deep Ensembles": softmax.mean(dim=0, keepdim=True)}
        rules[rule] = {
            name: {
                metric: interval._asdict()
                for metric, interval in paired_bootstrap(
                    ours, theirs, labels, metrics=COLUMNS
                ).items()
            }
            for name, theirs in others.items()
        }
    write_json(out / "differences.json", {"rules": rules, "versions": library_versions()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
