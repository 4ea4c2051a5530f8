"""The document `results.json` as a page in Markdown, `README.md`."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_HEADING = """\
# Speed

Made by `make bench`; do not edit it by hand. `python -m benchmarks train` measures one part and
prints it, and with `--write` keeps it here.

Contenders take turns in one run, and the ratio of each to its baseline is taken within every turn:
medians and quartiles. Where both fused and plain softmax attention are there, the baseline is the
faster. Layers are measured forwards and backwards with their penalties, training steps with
objective and optimizer. KEP is the default, dual, where landmarks are not said.
"""

_TITLES = {
    "layer": "One layer, forwards and backwards",
    "train": "A training step",
    "predict": "Ten samples against one pass",
    "converted": "A converted model",
    "novelty": "Novelty",
    "sweep": "A reproduction of everything",
    "scaling": "Growth with the number of tokens",
    "parallel": "Tokens of one sequence spread over processes",
    "methods": "All methods",
}


def read(path: Path) -> dict[str, Any]:
    """The document in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def render(document: Mapping[str, Any]) -> str:
    """The page: the machine, every limit with what was measured, and then all numbers."""
    suites = {name: suite["measured"] for name, suite in document.items()}
    parts = [_HEADING, _machine([*document.values()]), "## Limits\n", _limits(suites)]
    if notes := _notes():
        parts.append(notes)
    for name, measured in suites.items():
        parts += [f"## {_TITLES.get(name, name)}\n", details(measured)]
    return "\n".join(parts)


def _machine(suites: Sequence[Mapping[str, Any]]) -> str:
    machine, loads = suites[0], [suite["load"] for suite in suites if suite["load"] is not None]
    return (
        f"Measured on {machine['processor']}, {machine['cores']} cores, {machine['threads']} "
        f"threads, {machine['dtype']}, torch {machine['torch']}, Python {machine['python']}, "
        f"{machine['system']}; load before the first part {loads[0] if loads else 'unknown'}.\n"
    )


def _notes() -> str:
    """Where the time goes that is left, kept by hand."""
    path = Path(__file__).parent / "left.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _limits(suites: Mapping[str, Any]) -> str:
    rows = [row for measured in suites.values() for m in measured for row in _limits_of(m)]
    # landmarks are an option: theirs come last
    rows.sort(key=lambda row: "landmark" in row[0] + row[1])
    return _table(["what", "", "must", "wish", "measured", "quartiles", ""], rows)


def _limits_of(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """The limits of one measurement; each kind of measurement has its own fields."""
    name = measured["name"]

    def row(
        what: str, value: float, must: float, wish: float | None, spread: str = ""
    ) -> list[str]:
        wished = "" if wish is None else f"{wish:.2f}"
        verdict = _verdict(value <= must)
        return [name, what, f"{must:.2f}", wished, f"**{value:.2f}**", spread, verdict]

    for limit in measured.get("limits", ()):
        own = measured["contenders"][limit["contender"]]
        what = f"{limit['contender']} / {measured['baseline']}"
        yield row(what, limit["ratio"], limit["must"], limit["wish"], _quartiles(own))
    if measured.get("must") is not None and "time_exponent" in measured:
        for kind in ("time", "memory"):
            exponent = measured[f"{kind}_exponent"]
            yield row(f"exponent of {kind} in N", exponent, measured["must"], measured["wish"])
    if "values" in measured:
        for what, (must, wish) in measured.get("must", {}).items():
            yield row(what, measured["values"][what], must, wish)
    if "bytes_sent" in measured:
        sent = ", ".join(f"{number:,}" for number in dict.fromkeys(measured["bytes_sent"]))
        what = f"bytes sent, to {measured['lengths'][-1]:,} tokens"
        yield [name, what, "constant", "", f"**{sent}**", "", _verdict(measured["passed"])]


def details(suite: Sequence[Mapping[str, Any]]) -> str:
    """All numbers of the measurements of one suite."""
    contests = [measured for measured in suite if "contenders" in measured]
    others = [_of_other(measured) for measured in suite if "contenders" not in measured]
    if not contests:
        return "\n".join(others)
    rows = []
    for measured in contests:
        sizes = f" ({measured['sizes']})" if measured.get("sizes") else ""
        for number, (name, own) in enumerate(measured["contenders"].items()):
            what = "" if number else measured["name"] + sizes
            ratio, seconds = f"{own['ratio']:.3f}", _seconds(own["seconds"])
            rows.append([what, name, ratio, _quartiles(own), seconds])
    return "\n".join([_table(["", "", "ratio", "quartiles", "time"], rows), *others])


def _of_other(measured: Mapping[str, Any]) -> str:
    title = f"**{measured['name']}**\n"
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
