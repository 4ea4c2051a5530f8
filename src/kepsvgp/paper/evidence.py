"""What a sweep leaves for the record: its tables and figures, and the small files of its runs.

Weights, predictions and logs stay behind, so that the evidence for a page of results can be
kept with the page.
"""

import shutil
from pathlib import Path

from kepsvgp.files import replacing
from kepsvgp.paper.plan import tasks_of
from kepsvgp.paper.sweep import Piece
from kepsvgp.runs.folder import RunFolder


def keep_evidence(wanted: list[Piece], out: Path, folder: Path) -> list[Path]:
    """Copies what belongs to some tables and figures into a folder; gives what was written."""
    files = []
    for piece in wanted:
        for kind in ("tables", "figures"):
            files += sorted((out / kind).glob(f"{piece.stem}.*"))
        for task in tasks_of(piece.exhibit, piece.study):
            run = RunFolder(out / task.name)
            small = (run.config_file, run.metrics_file, run.history_file, run.record_file)
            files += [file for file in small if file.exists()]
    written = []
    for file in dict.fromkeys(files):
        part = file.relative_to(out)
        # tables and figures stand on top, the runs they were made from below
        target = folder / (part if part.parts[0] in ("tables", "figures") else "runs" / part)
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)
        written.append(target)
    return written
