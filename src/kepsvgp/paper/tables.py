"""The nine tables and four figures of the paper, and a table of our own, declared."""

from dataclasses import replace

from kepsvgp.metrics.registry import OOD_SCORES
from kepsvgp.paper.declarations import TEXTS, Exhibit, MethodRow, Pair, PaperTable

MSP = MethodRow("msp", "MSP", "msp")
TEMPERATURE = MethodRow("temperature", "Temperature Scaling", "msp", posthoc="temperature")
MC_DROPOUT = MethodRow("mc_dropout", "MC Dropout", "msp", posthoc="mc_dropout")
KFLLLA = MethodRow("kfllla", "KFLLLA", "msp", posthoc="kfllla")
SVDKL = MethodRow("svdkl", "SV-DKL", "svdkl")
SGPA = MethodRow("sgpa", "SGPA", "sgpa")
SGPA_ON_TEXTS = MethodRow("sgpa", "SGPA", "sgpa", datasets=TEXTS)
KEP = MethodRow("kep", "KEP-SVGP", "kep")
DEEP_ENSEMBLES = MethodRow("deep_ensembles", "Deep Ensembles", "msp", is_ensemble=True)
KEP_ENSEMBLES = MethodRow("kep_ensembles", "KEP-SVGP Ensembles", "kep", is_ensemble=True)
ENSEMBLES = (DEEP_ENSEMBLES, KEP_ENSEMBLES)
SEVEN = ("score", "aurc", "auroc", "fpr95", "ece", "nll", "brier")
_SINGLE = ("msp", "mc_dropout", "kfllla", "svdkl")
_AGAINST_ALL = (
    *(Pair("kep", other) for other in _SINGLE),
    Pair("kep_ensembles", "deep_ensembles"),
)

EVERYWHERE = ("model.kep_layers=all",)
_WEIGHTS = ("10", "1", "0.1", "0.01")
_MERGES = {"concat": "[Fᵉ; Fʳ]", "add": "Fᵉ + Fʳ"}

# tables 4 and 8: its published program, which is for CIFAR-10
_SGPA_CIFAR = (
    *("model.dim=128", "model.num_heads=4", "model.mlp_dim=128", "train.augment=false"),
    *("train.epochs=500", "train.lr=5e-4", "train.weight_decay=0"),
    *("train.schedule=linear", "train.decay_epochs=480", "data.normalisation=exact"),
)
_SGPA_SETTINGS = {
    "cifar10": ("model.depth=5", *_SGPA_CIFAR),
    "cifar100": ("model.depth=6", *_SGPA_CIFAR),
}
_SGPA_REST = "Its learnt pooling, and its Adam that begins anew each epoch, are not taken over."
_SGPA_NOTES = {
    "cifar10": (_SGPA_REST,),
    "cifar100": (
        _SGPA_REST,
        "Of CIFAR-100 the depth alone is published; the rest is as in the program for CIFAR-10.",
    ),
}


def _pairing(branches: str, title: str) -> MethodRow:
    settings = (*EVERYWHERE, "model.kep.merge=add", f"model.kep.branches={branches}")
    return MethodRow(f"kep_{branches}", title, "kep", settings=settings)


def _weighted(merge: str, weight: str) -> MethodRow:
    settings = (
        *(f"model.kep.merge={merge}", f"objective.ksvd_weight={weight}"),
        "model.kep.ksvd_loss=objective",
    )
    title = f"η = {weight}"
    return MethodRow(f"{merge}/{weight}", title, "kep", settings=settings, group=_MERGES[merge])


_PEERS = ("energy", "max_logit_pnorm", "mahalanobis", "nearest_neighbour", "vim")


def by_score(row: MethodRow, score: str) -> MethodRow:
    """A row that tells foreign data from the test set by another score than the confidence."""
    title = OOD_SCORES[score]
    return replace(row, key=f"{row.key}/{score}", title=f"{row.title}, {title}", score=score)


_TABLE4 = PaperTable(
    name="table4",
    title="Performance and training time against MSP and SGPA, with SGPA's architectures",
    datasets=("cifar10", "cifar100", "imdb", "cola"),
    rows=(MSP, SGPA, KEP),
    metrics=("score", "nll", "seconds_per_epoch"),
    pairs=(Pair("kep", "msp"), Pair("kep", "sgpa")),
    paper_settings=_SGPA_SETTINGS,
    paper_notes=_SGPA_NOTES,
    notes=(
        "s/epoch is the median time of a training step × steps per epoch, the methods timed "
        "in turn in one process; the paper's was measured on a V100.",
    ),
)

TABLES = (
    PaperTable(
        name="table1",
        title="In-distribution performance, failure prediction and calibration",
        datasets=("cifar10", "cifar100", "imdb", "cola"),
        rows=(MSP, TEMPERATURE, MC_DROPOUT, KFLLLA, SVDKL, SGPA_ON_TEXTS, KEP, *ENSEMBLES),
        metrics=SEVEN,
        pairs=(
            *_AGAINST_ALL,
            Pair("kep", "temperature"),
            Pair("kep", "sgpa"),
            Pair("kep", "deep_ensembles"),
        ),
    ),
    PaperTable(
        name="table2",
        title="Performance under distribution shift, mean over all corruptions and severities",
        datasets=("cifar10", "cifar100"),
        rows=(MSP, MC_DROPOUT, KFLLLA, SVDKL, KEP, *ENSEMBLES),
        metrics=SEVEN,
        source="shift",
        pairs=_AGAINST_ALL,
        needs=("shift",),
    ),
    PaperTable(
        name="table3",
        title="Detection of out-of-distribution data",
        datasets=("cifar10", "cifar100"),
        rows=(
            *(MSP, MC_DROPOUT, KFLLLA, SVDKL, KEP, *ENSEMBLES),
            *(by_score(MSP, score) for score in (*_PEERS, "novelty")),
            *(by_score(KEP, score) for score in ("epistemic", "novelty")),
        ),
        metrics=("ood_auroc", "ood_aupr"),
        source="ood",
        pairs=_AGAINST_ALL,
        needs=("ood",),
        notes=(
            "The score is the confidence where no other is named, and the test set is the positive "
            "class of AUPR.",
        ),
    ),
    _TABLE4,
    PaperTable(
        name="table5",
        title="Ablation of the asymmetry: one branch twice against the pair, in all layers",
        datasets=("cola",),
        rows=(
            MSP,
            _pairing("ee", "Fᵉ + Fᵉ"),
            _pairing("rr", "Fʳ + Fʳ"),
            _pairing("er", "Fᵉ + Fʳ"),
        ),
        metrics=SEVEN,
        pairs=(
            Pair("kep_er", "kep_ee"),
            Pair("kep_er", "kep_rr"),
            Pair("kep_ee", "msp"),
            Pair("kep_rr", "msp"),
            Pair("kep_er", "msp"),
        ),
    ),
    PaperTable(
        name="table6",
        title="Full against low-rank concatenation of the branches",
        datasets=("cifar10",),
        rows=(
            MethodRow("concat", "W₁ (N × 2N)", "kep", settings=("model.kep.merge=concat",)),
            MethodRow(
                "concat_lowrank", "A Bᵀ", "kep", settings=("model.kep.merge=concat_lowrank",)
            ),
        ),
        metrics=("forward_seconds", *SEVEN),
        pairs=(Pair("concat", "concat_lowrank"),),
        needs=("images",),
        notes=(
            "Forward time is that of one training batch, the variants timed in turn in one "
            "process; the paper's was measured on a V100.",
        ),
    ),
    PaperTable(
        name="table7",
        title="KEP-SVGP as a complement to other calibration methods",
        datasets=TEXTS,
        rows=(
            # the paper has one post-hoc method for each data set; none of them trains anything
            MSP,
            TEMPERATURE,
            MC_DROPOUT,
            KFLLLA,
            KEP,
            MethodRow("kep_temperature", "KEP-SVGP + TS", "kep", posthoc="temperature"),
            MethodRow("kep_mc_dropout", "KEP-SVGP + MC Dropout", "kep", posthoc="mc_dropout"),
            MethodRow("kep_kfllla", "KEP-SVGP + KFLLLA", "kep", posthoc="kfllla"),
        ),
        metrics=SEVEN,
        pairs=(
            Pair("kep_temperature", "kep"),
            Pair("kep_temperature", "temperature"),
            Pair("kep_kfllla", "kep"),
            Pair("kep_kfllla", "kfllla"),
        ),
    ),
    replace(
        _TABLE4,
        name="table8",
        title="Performance and forward time, with SGPA's architectures",
        metrics=("score", "forward_seconds"),
        notes=(
            "Forward time is that of one training batch, the methods timed in turn in one "
            "process; the paper's was measured on a V100.",
        ),
    ),
    PaperTable(
        name="table9",
        title="Ablation of the KSVD weight η and of the merging scheme",
        datasets=("cifar10",),
        rows=tuple(_weighted(merge, weight) for merge in _MERGES for weight in _WEIGHTS),
        metrics=SEVEN,
        pairs=(
            *(Pair(f"concat/{weight}", f"add/{weight}") for weight in _WEIGHTS),
            *(Pair("concat/10", f"concat/{weight}") for weight in _WEIGHTS[1:]),
        ),
        needs=("images",),
    ),
)

FIGURES = (
    Exhibit(
        name="figure2",
        title="MSP and KEP-SVGP under each corruption at severity 5",
        datasets=("cifar10",),
        rows=(MSP, KEP),
        splits=("shift@5",),
        needs=("shift",),
    ),
    Exhibit(
        name="figure3",
        title="Confidence on correct, wrong and out-of-distribution examples",
        datasets=("cifar10",),
        rows=(MSP, MC_DROPOUT, KEP),
        splits=("test", "ood"),
        needs=("ood",),
    ),
    Exhibit(
        name="figure4",
        title="Spectrum of the attention kernel by layer and model",
        datasets=("cola",),
        rows=(
            MSP,
            MethodRow("kep_last", "KEP-SVGP, last layer", "kep", settings=("model.kep.merge=add",)),
            MethodRow(
                "kep_all",
                "KEP-SVGP, all layers",
                "kep",
                settings=(*EVERYWHERE, "model.kep.merge=add"),
            ),
        ),
        is_inspected=True,
    ),
    Exhibit(
        name="figure5",
        title="AURC under each corruption, mean over the severities",
        datasets=("cifar10",),
        rows=(MSP, MC_DROPOUT, KFLLLA, SVDKL, KEP),
        splits=("shift",),
        needs=("shift",),
    ),
)


def _choice(key: str, title: str, *changes: str) -> MethodRow:
    """A row that makes every open choice of the layer, the plainest but for the changes."""
    return MethodRow(key, title, "kep", settings=(*_PLAINEST, *changes))


_PLAINEST = (
    "model.kep.projection=landmark",
    "model.kep.ksvd_loss=objective",
    "objective.ksvd_weight=1",
    "model.kep.noise=joint",
    "model.kep.start=scaled",
    "model.kep.posterior_scale=0.1",
    "objective.kl_weight=1",
    "prediction.average=probs",
)
_DUAL = "model.kep.projection=dual"
_BY_TOKEN = ("model.kep.noise=token", "prediction.average=logits")
_WHOLE_KL = "objective.kl_weight=whole"

DEFAULTS = PaperTable(
    name="defaults",
    title="Open choices of the layer, on validation data",
    datasets=("digits", "cola"),
    rows=(
        MSP,
        _choice("landmark", "landmark, joint noise, KL / N, probabilities, scale 0.1"),
        _choice("free", "free projection", "model.kep.projection=free"),
        _choice("dual", "dual projection", _DUAL),
        _choice("residual", "dual, residual loss", _DUAL, "model.kep.ksvd_loss=residual"),
        _choice("token", "noise by token", "model.kep.noise=token"),
        _choice("whole_kl", "whole KL", _WHOLE_KL),
        _choice("logits", "average of logits", "prediction.average=logits"),
        *(
            _choice(f"scale{scale}", f"scale {scale}", f"model.kep.posterior_scale={scale}")
            for scale in ("0.03", "0.3", "1")
        ),
        _choice("authors", "noise by token, whole KL, logits", *_BY_TOKEN, _WHOLE_KL),
    ),
    metrics=SEVEN,
    source="val",
)

NAMES = tuple(exhibit.name for exhibit in (*TABLES, *FIGURES))
