"""All metrics of the paper in one call, from one sort."""

from jaxtyping import Float, Integer

from kepsvgp.metrics import calibration, curves, ranking
from kepsvgp.metrics.inputs import Array, outcome, warn_undefined


def all_metrics(
    probs: Float[Array, "example class"],
    labels: Integer[Array, " example"],
    *,
    convention: ranking.Convention = "exact",
) -> dict[str, float]:
    """Every metric of the paper by name, in raw units, over the whole set.

    The names are accuracy, mcc, aurc, eaurc, auroc, fpr95, aupr_success, aupr_error, ece, nll
    and brier. Metrics that these examples leave undefined are NaN, with one warning for all.

    Args:
        convention: "exact" or, for comparison with published tables, "paper": the authors'
            variants of eaurc (asymptotic optimum), fpr95 (nearest corner) and aupr_success
            (trapezoid rule).
    """
    given = outcome(probs, labels)
    counts = curves.tally(curves.order_by(given.confidence), given.correct)
    values = {
        "accuracy": given.correct.double().mean(),
        "mcc": ranking.matthews(given),
        **ranking.failure_metrics(counts, convention),
        "ece": calibration.top_label_ece(given, 15),
        "nll": calibration.each_nll(given).mean(),
        "brier": calibration.each_brier(given).mean(),
    }
    undefined = [name for name, value in values.items() if bool(value.isnan())]
    if undefined:
        state = "correct" if bool(given.correct.all()) else "wrong"
        warn_undefined(undefined, f"all {len(given.labels)} predictions are {state}")
    return {name: float(value) for name, value in values.items()}
