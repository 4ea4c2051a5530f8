"""Keeps a study's numbers in results/, from the folder that `kepsvgp reproduce` filled.

    kepsvgp reproduce study-cola --profile small --out runs
    python -m tools.study runs study-cola [study-cifar10 …]

Several tables of one study share a file: every seed's metrics, differences with their intervals,
settings, versions and the command.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from kepsvgp.runs.folder import RunFolder
from tools.tables import ROOT

RULE = "nll"


def kept(out: Path, names: list[str]) -> dict[str, Any]:
    """The content of a file of results/: the first table names its settings and versions."""
    found = {
        name: json.loads((out / "tables" / f"{name}-{RULE}.json").read_text()) for name in names
    }
    first = found[names[0]]
    rows = [row for row in first["rows"] if row["runs"] and _has_values(first, row["key"])]
    configs = {row["key"]: RunFolder(out / row["runs"][0]).config() for row in rows}
    by_row = {key: config.identity() for key, config in configs.items()}
    common = dict(set.intersection(*(set(_hashable(each).items()) for each in by_row.values())))
    return {
        "title": first["title"],
        "versions": next(iter(configs.values())).versions,
        "sizes": RunFolder(out / rows[0]["runs"][0]).record()["splits"]["sizes"],
        "settings": dict(sorted(common.items())),
        "settings_by_row": {
            key: {name: value for name, value in _hashable(each).items() if name not in common}
            for key, each in by_row.items()
        },
        "tables": {name.removeprefix(f"{names[0]}-"): _table(t) for name, t in found.items()},
    }


def _has_values(table: dict[str, Any], key: str) -> bool:
    return any(cell["values"] for cell in table["cells"] if cell["row"] == key)


def _hashable(settings: dict[str, Any]) -> dict[str, Any]:
    return {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in settings.items()}


def _table(found: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {row["key"]: {"title": row["title"]} for row in found["rows"]}
    for cell in found["cells"]:
        row, key = rows[cell["row"]], cell["column"]
        if cell["values"]:
            row.setdefault(RULE, {})[key] = [float(f"{value:.6g}") for value in cell["values"]]
        if cell["paper"]:
            row.setdefault("paper", {})[key] = [cell["paper"]["mean"], cell["paper"]["sd"]]
    study = found["study"]
    command = ["kepsvgp", "reproduce", found["table"], "--profile", study["budget"]]
    command += ["--seeds", str(study["seeds"]), *study["overrides"]]
    return {
        "rows": {key: row for key, row in rows.items() if RULE in row},
        "differences": {
            RULE: {
                pair: {k: [float(f"{end:.6g}") for end in ends] for k, ends in intervals.items()}
                for pair, intervals in found["differences"].items()
                if intervals
            }
        },
        "title": found["title"],
        "columns": found["columns"],
        "seeds": study["seeds"],
        "command": shlex.join(command),
    }


if __name__ == "__main__":
    out, names = Path(sys.argv[1]), sys.argv[2:]
    content = json.dumps(kept(out, names), indent=1, ensure_ascii=False)
    (ROOT / "results" / f"{names[0]}.json").write_text(content + "\n", encoding="utf-8")
