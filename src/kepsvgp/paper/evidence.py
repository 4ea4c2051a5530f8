"""What a sweep leaves for the record: its tables and figures, and the small files of its runs.

Weights, predictions and logs stay behind, so that the evidence for a page of results can be
kept with the page.
"""

import shutil
from pathlib import Path

from kepsvgp.files import replacing
from kepsvgp.paper.plan import Plan
from kepsvgp.runs.folder import RunFolder


def keep_evidence(plan: Plan, out: Path, folder: Path) -> list[Path]:
    """Copies what belongs to a plan into a folder; gives what was written."""
    # tables and figures stand on top, the runs they were made from below
    files = {
        file: folder / kind / file.name
        for kind in ("tables", "figures")
        for planned in plan.exhibits
        for file in sorted((out / kind).glob(f"{planned.stem}.*"))
    }
    for task in plan.tasks:
        run = RunFolder(out / task.name)
        small = (run.config_file, run.metrics_file, run.history_file, run.record_file)
        files |= {f: folder / "runs" / task.name / f.name for f in small if f.exists()}
    for file, target in files.items():
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)
    return list(files.values())
