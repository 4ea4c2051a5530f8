"""Our own studies: few settings, five seeds, one rule for the epoch, declared before the runs.

Weights are those of the best validation NLL. Every difference has an interval over seeds and test
examples. Temperature scaling on both sides is the main comparison.
"""

from dataclasses import replace

from kepsvgp.paper.declarations import MethodRow, Pair, PaperTable
from kepsvgp.paper.tables import (
    DEEP_ENSEMBLES,
    KEP,
    KEP_ENSEMBLES,
    KFLLLA,
    MC_DROPOUT,
    MSP,
    SEVEN,
    SGPA,
    SVDKL,
    TEMPERATURE,
    by_score,
)

_NOISE = MethodRow("matched_noise", "Softmax with KEP-SVGP's noise", "matched_noise")
_NOISE_TS = replace(_NOISE, key="matched_noise_ts", title=f"{_NOISE.title} + TS")
_NOISE_TS = replace(_NOISE_TS, posthoc="temperature")
_KEP_TS = MethodRow("kep_temperature", "KEP-SVGP + TS", "kep", posthoc="temperature")
_AS_TRAINED = MethodRow(
    "kep_trained", "KEP-SVGP, not refitted", "kep", settings=("model.kep.refit=false",)
)


def _variant(name: str, title: str, *settings: str) -> MethodRow:
    """A reading of the paper, on the study's own test set."""
    row = MethodRow(f"kep_{name}", f"KEP-SVGP, {title}", "kep", variant=name)
    return replace(row, settings=("data.split=official", *settings))


_TEXT = _variant("text", "as printed")
_PROGRAM = _variant("program", "as the authors' program")
_PAIRS = (
    Pair("kep_temperature", "temperature"),
    Pair("kep", "msp"),
    Pair("kep_temperature", "matched_noise_ts"),
    Pair("kep_temperature", "deep_ensembles"),
)
_ALL = (MSP, TEMPERATURE, MC_DROPOUT, KFLLLA, SVDKL, SGPA, _NOISE, _NOISE_TS)


def _pairing(branches: str, title: str) -> MethodRow:
    return MethodRow(f"kep_{branches}", title, "kep", settings=(f"model.kep.branches={branches}",))


_CIFAR = PaperTable(
    name="study-cifar10",
    title="Small ViT, eight epochs on 20,000 images",
    datasets=("cifar10",),
    numbers="table1",
    config="cifar10-small",
    checkpoint="nll",
    rows=(
        *(row for row in _ALL if row != SGPA),
        *(KEP, _KEP_TS, _TEXT, _PROGRAM),
        MethodRow("kep_add", "KEP-SVGP, Fᵉ + Fʳ", "kep", settings=("model.kep.merge=add",)),
        *(DEEP_ENSEMBLES, KEP_ENSEMBLES),
    ),
    metrics=SEVEN,
    pairs=(*_PAIRS, Pair("kep", "kep_add")),
)

STUDIES = (
    PaperTable(
        name="study-cola",
        title="From features alone, the paper's schedule",
        datasets=("cola",),
        numbers="table1",
        config="cola-features",
        checkpoint="nll",
        rows=(
            *(*_ALL, KEP, _KEP_TS, _AS_TRAINED, _TEXT, _PROGRAM),
            *(_pairing("ee", "Fᵉ + Fᵉ"), _pairing("rr", "Fʳ + Fʳ")),
            *(DEEP_ENSEMBLES, KEP_ENSEMBLES),
        ),
        metrics=SEVEN,
        pairs=(*_PAIRS, Pair("kep", "kep_ee"), Pair("kep", "kep_rr")),
    ),
    PaperTable(
        name="study-imdb",
        title="Three epochs, 256 tokens of a review",
        datasets=("imdb",),
        numbers="table1",
        config="imdb-small",
        checkpoint="nll",
        rows=(
            *(MSP, TEMPERATURE, MC_DROPOUT, SGPA, _NOISE, _NOISE_TS),
            *(KEP, _KEP_TS, _PROGRAM, DEEP_ENSEMBLES),
        ),
        metrics=SEVEN,
        pairs=_PAIRS,
    ),
    _CIFAR,
    replace(
        _CIFAR,
        name="study-cifar10-shift",
        title="The same models under corruption",
        numbers="table2",
        source="shift",
        rows=(MSP, TEMPERATURE, MC_DROPOUT, KEP, _KEP_TS, DEEP_ENSEMBLES),
        pairs=_PAIRS[:2],
        needs=("shift",),
    ),
    replace(
        _CIFAR,
        name="study-cifar10-ood",
        title="The same models on foreign images",
        numbers="table3",
        source="ood",
        metrics=("ood_auroc", "ood_aupr"),
        rows=(
            *(MSP, MC_DROPOUT, KEP, DEEP_ENSEMBLES),
            *(
                by_score(MSP, score)
                for score in ("energy", "mahalanobis", "nearest_neighbour", "vim", "novelty")
            ),
            *(by_score(KEP, score) for score in ("epistemic", "novelty")),
        ),
        pairs=(Pair("kep", "msp"),),
        needs=("ood",),
    ),
)
