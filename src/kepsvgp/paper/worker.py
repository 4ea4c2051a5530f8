"""The process of one job: `python -m kepsvgp.paper.worker`, in the output root.

The job is the first line of its standard input, which then stays open as long as the one who
started it lives. When it ends the process ends too, so that a killed sweep leaves nothing
running behind it.
"""

import os
import sys
import threading
from pathlib import Path

from pydantic import TypeAdapter

from kepsvgp.errors import UserError
from kepsvgp.paper.plan import Task, Timing

ABANDONED = 3

JOB: TypeAdapter[Task | Timing] = TypeAdapter(Task | Timing)


def main() -> int:
    """Does the job; a mistake that a user can mend is one line, anything else a traceback."""
    from rich.console import Console

    from kepsvgp.ops.denormals import flushed_denormals
    from kepsvgp.paper.timing import measure_times
    from kepsvgp.paper.work import perform

    job = JOB.validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _use_threads()
    try:
        with flushed_denormals():
            if isinstance(job, Task):
                failed = perform(job, Path(), Console(stderr=True))
            else:
                failed = {}
                measure_times(job, Path())
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for step, reason in failed.items():
        sys.stderr.write(f"error: {step}: {reason}\n")
    return 1 if failed else 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(ABANDONED)


def _use_threads() -> None:
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS")
    if wanted is not None:
        torch.set_num_threads(int(wanted))


if __name__ == "__main__":
    sys.exit(main())
