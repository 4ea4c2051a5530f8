"""The document `results.json` as a page in Markdown, `README.md`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_HEADING = """\
# Speed

Made by `make bench`, which measures everything into `results.json` and renders this page from it;
do not edit it by hand. `python -m benchmarks layer train` measures some of it and prints that.

Contenders take turns in one run, and the ratio of each to its baseline is taken within every turn:
medians, with the quartiles beside them. Seconds belong to the machine; ratios are what to look at.
A layer is measured forwards and backwards with its penalties, a training step with objective and
optimizer. Where both fused and plain softmax attention are there, the baseline is the faster. SGPA
has the settings of its paper. KEP layers and models are dual, the default, where landmarks, ten for
each singular pair, are not said. *N × s × s* is the sampling as the paper's equations read, in our
words.
"""

_TITLES = {
    "layer": "One layer, forwards and backwards",
    "train": "A training step",
    "predict": "A prediction",
    "converted": "A converted model",
    "scaling": "Growth with the number of tokens",
    "parallel": "Tokens of one sequence spread over processes",
    "methods": "All methods",
    "metrics": "Metrics",
    "loop": "Around the model",
    "sweep": "A reproduction of everything",
    "start": "Start",
}


def read(path: Path) -> dict[str, Any]:
    """The document in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def render(document: Mapping[str, Any]) -> str:
    """The page: the machine, every limit with what was measured, and then all numbers."""
    machine, suites = document["machine"], document["suites"]
    parts = [_HEADING, _machine(machine), "## Limits\n", _limits(suites)]
    for name, measured in suites.items():
        parts.append(f"## {_TITLES.get(name, name)}\n")
        parts += [details(measurement) for measurement in measured]
    return "\n".join(parts)


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"Measured on {machine['processor']}, {machine['cores']} cores, {machine['threads']} "
        f"threads, {machine['dtype']}, torch {machine['torch']}, Python {machine['python']}, "
        f"{machine['system']}. Load before the first turn: {machine['load']}.\n"
    )


def _limits(suites: Mapping[str, Any]) -> str:
    rows = [row for measured in suites.values() for m in measured for row in _limits_of(m)]
    return _table(["what", "must", "wish", "measured", "quartiles", ""], rows)


def _limits_of(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """The limits of one measurement; each kind of measurement has its own fields."""
    name = measured["name"]
    for limit in measured.get("limits", ()):
        sign = "≥" if limit["at_least"] else "≤"
        wish = "" if limit["wish"] is None else f"{sign} {limit['wish']}"
        own = measured["contenders"][limit["contender"]]
        what = f"{name}: {limit['contender']} against {measured['baseline']}"
        yield [
            what, f"{sign} {limit['must']}", wish, f"**{limit['ratio']:.2f}**",
            _quartiles(own), _verdict(limit["passed"]),
        ]  # fmt: skip
    if measured.get("must") is not None and "time_exponent" in measured:
        for kind in ("time", "memory"):
            exponent, must, wish = measured[f"{kind}_exponent"], measured["must"], measured["wish"]
            yield [
                f"{name}: exponent of {kind}", f"≤ {must}", f"{wish}", f"**{exponent:.2f}**",
                "", _verdict(exponent <= must),
            ]  # fmt: skip
    if "values" in measured:
        for what, (must, wish) in measured.get("must", {}).items():
            value = measured["values"][what]
            yield [
                f"{name}: {what}", f"≤ {must}", f"≤ {wish}", f"**{value:.2f}**",
                "", _verdict(value <= must),
            ]  # fmt: skip
    if "bytes_sent" in measured:
        sent = [f"{number:,}" for number in dict.fromkeys(measured["bytes_sent"])]
        longest = measured["lengths"][-1]
        yield [
            f"{name}, to {longest:,} tokens: bytes sent", "independent of length", "",
            f"**{', '.join(sent)}**", "", _verdict(measured["passed"]),
        ]  # fmt: skip


def details(measured: Mapping[str, Any]) -> str:
    """All numbers of one measurement."""
    title = f"**{measured['name']}**\n"
    if "contenders" in measured:
        rows = [
            [name, f"{own['ratio']:.3f}", _quartiles(own), _seconds(own["seconds"])]
            for name, own in measured["contenders"].items()
        ]
        return f"{title}\n{_table(['', 'ratio', 'quartiles', 'time'], rows)}"
    if "time_exponent" in measured:
        columns = zip(measured["lengths"], measured["seconds"], measured["peak_bytes"], strict=True)
        rows = [[f"{n:,}", _seconds(t), f"{peak / 1e6:.1f} MB"] for n, t, peak in columns]
        return f"{title}\n{_table(['tokens', 'time', 'peak memory'], rows)}"
    if "bytes_sent" in measured:
        columns = (measured[key] for key in ("lengths", "bytes_sent", "softmax_bytes"))
        rows = [[f"{number:,}" for number in row] for row in zip(*columns, strict=True)]
        table = _table(["tokens", "bytes sent", "softmax: keys and values, by arithmetic"], rows)
        return (
            f"{title}\n{table}\nOutputs and gradients differ from those of one process by "
            f"{measured['difference']:.0e} of the largest, in float64.\n"
        )
    rows = [[name.replace("_", " "), f"{value:.3g}"] for name, value in measured["values"].items()]
    return f"{title}\n{_table(['', ''], rows)}"


def _quartiles(own: Mapping[str, Any]) -> str:
    low, high = own["ratio_quartiles"]
    return f"{low:.2f} – {high:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _verdict(passed: bool) -> str:
    return "kept" if passed else "**missed**"


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
