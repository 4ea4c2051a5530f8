"""Slow second computations of the metrics: loops over examples, thresholds and orders."""

import itertools
import math
from collections.abc import Sequence


def aurc(confidence: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean error rate among the n most confident, ties in the order given."""
    ranked = sorted(zip(confidence, correct, strict=True), key=lambda pair: -pair[0])
    errors, total = 0, 0.0
    for n, (_, right) in enumerate(ranked, start=1):
        errors += not right
        total += errors / n
    return total / len(ranked)


def aurc_over_all_orders(confidence: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean of `aurc` over every order of the data: its expected value under ties."""
    pairs = list(zip(confidence, correct, strict=True))
    values = [aurc(*zip(*order, strict=True)) for order in itertools.permutations(pairs)]
    return sum(values) / len(values)


def least_aurc(num_correct: int, num_wrong: int) -> float:
    """`aurc` with all errors at the end."""
    size = num_correct + num_wrong
    return aurc(range(size, 0, -1), [True] * num_correct + [False] * num_wrong)


def auroc(scores: Sequence[float], positive: Sequence[bool]) -> float:
    """Share of pairs in the right order, half a pair for a tie."""
    wins, pairs = 0.0, 0
    for a, is_a in zip(scores, positive, strict=True):
        for b, is_b in zip(scores, positive, strict=True):
            if is_a and not is_b:
                pairs += 1
                wins += 1.0 if a > b else 0.5 if a == b else 0.0
    return wins / pairs if pairs else math.nan


def fpr_at_recall(scores: Sequence[float], positive: Sequence[bool], recall: float) -> float:
    """Smallest false-positive rate of all thresholds that reach the recall."""
    num_positive = sum(positive)
    num_negative = len(positive) - num_positive
    if not (num_positive and num_negative):
        return math.nan
    rates = []
    for threshold in set(scores):
        taken = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        if sum(taken) / num_positive >= recall:
            rates.append((len(taken) - sum(taken)) / num_negative)
    return min(rates)


def average_precision(scores: Sequence[float], positive: Sequence[bool]) -> float:
    """Σ (change of recall) · precision over descending thresholds."""
    num_positive, before, total = sum(positive), 0.0, 0.0
    if not num_positive:
        return math.nan
    for threshold in sorted(set(scores), reverse=True):
        taken = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        recall = sum(taken) / num_positive
        total += (recall - before) * sum(taken) / len(taken)
        before = recall
    return total


def binned_error(values: Sequence[float], hits: Sequence[bool], num_bins: int) -> float:
    """Σ_b |B|/N · |mean value − share of hits| over the bins (b/n, (b + 1)/n]."""
    total = 0.0
    for b in range(num_bins):
        inside = [
            i
            for i, value in enumerate(values)
            if (value > b / num_bins or b == 0) and value <= (b + 1) / num_bins
        ]
        if inside:
            mean = sum(values[i] for i in inside) / len(inside)
            share = sum(hits[i] for i in inside) / len(inside)
            total += len(inside) / len(values) * abs(mean - share)
    return total


def binomial_tail(errors: int, size: int, rate: float) -> float:
    """Probability of at most `errors` of `size` at the given error rate."""
    return sum(math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(errors + 1))
