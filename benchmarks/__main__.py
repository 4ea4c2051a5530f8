"""Measures suites and prints them as Markdown; `make bench` keeps all of them.

    python -m benchmarks [SUITE …] [--small] [--rounds N] [--threads N] [--write]
    python -m benchmarks --page

Other work on the machine blurs the ratios; the quartiles show by how much.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from benchmarks import (
    converted,
    growth,
    layer,
    loop,
    methods,
    metrics,
    models,
    start,
    sweep,
    traffic,
)
from benchmarks.machine import machine
from benchmarks.page import details, read, render
from benchmarks.timing import Measurement, Options
from kepsvgp.files import write_atomic

HERE = Path(__file__).parent
SUITES: Mapping[str, Callable[[Options], Iterable[Measurement]]] = {
    "layer": layer.contests,
    "train": models.train_contests,
    "predict": models.predict_contests,
    "converted": converted.contests,
    "scaling": growth.measurements,
    "parallel": traffic.measurements,
    "methods": methods.measurements,
    "metrics": metrics.contests,
    "loop": loop.measurements,
    "sweep": sweep.measurements,
    "start": start.contests,
}


def main() -> None:
    """Measures, or renders the page of what was measured before."""
    arguments = _arguments()
    if not arguments.page:
        torch.set_num_threads(arguments.threads)
        options = Options(rounds=arguments.rounds, small=arguments.small)
        document: dict[str, object] = {"machine": machine()}
        document["suites"] = {name: _measured(name, options) for name in arguments.suites or SUITES}
        if arguments.write:
            text = json.dumps(document, indent=2, ensure_ascii=False)
            write_atomic(arguments.folder / "results.json", text + "\n")
    if arguments.page or arguments.write:
        page = render(read(arguments.folder / "results.json"))
        write_atomic(arguments.folder / "README.md", page)


def _measured(name: str, options: Options) -> list[dict[str, object]]:
    summaries = []
    for measurement in SUITES[name](options):
        summaries.append(measurement.summary())
        print(details(summaries[-1]), flush=True)
    return summaries


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=15, help="turns that each contender has")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the programs")
    parser.add_argument("--write", action="store_true", help="keep results.json and README.md")
    parser.add_argument("--page", action="store_true", help="measure nothing: render README.md")
    parser.add_argument("--folder", type=Path, default=HERE, help="where both files are")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.suites if name not in SUITES]:
        parser.error(f"a suite must be one of {', '.join(SUITES)}; got {', '.join(unknown)}")
    return arguments


if __name__ == "__main__":
    main()
