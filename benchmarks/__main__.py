"""Measures suites and prints them as Markdown; `make bench` keeps all of them.

    python -m benchmarks [SUITE …] [--small] [--rounds N] [--threads N] [--write]
    python -m benchmarks --page

With `--write` every suite is kept as soon as it is measured, beside those measured before: one
can be measured again, and what was broken off goes on with the suites that are left. Other work
on the machine blurs the ratios; the quartiles show by how much.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from benchmarks import converted, growth, layer, methods, models, sweep, traffic
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
    "novelty": models.novelty_contests,
    "sweep": sweep.measurements,
    "scaling": growth.measurements,
    "parallel": traffic.measurements,
    "methods": methods.measurements,
}


def main() -> None:
    """Measures, or renders the page of what was measured before."""
    arguments = _arguments()
    results = arguments.folder / "results.json"
    if arguments.page:
        write_atomic(arguments.folder / "README.md", render(read(results)))
        return
    torch.set_num_threads(arguments.threads)
    options = Options(rounds=arguments.rounds, small=arguments.small)
    for name in arguments.suites or SUITES:
        found = {**machine(), "measured": _measured(name, options)}
        if arguments.write:
            document = {**(read(results) if results.is_file() else {}), name: found}
            document = {each: document[each] for each in SUITES if each in document}
            write_atomic(results, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            write_atomic(arguments.folder / "README.md", render(document))


def _measured(name: str, options: Options) -> list[dict[str, object]]:
    summaries = []
    for measurement in SUITES[name](options):
        summaries.append(measurement.summary())
        print(details(summaries[-1:]), flush=True)
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
