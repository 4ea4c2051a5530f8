"""How long the user waits before anything happens: imports, the command line, the first step."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.timing import Contest, Options, compare

ROOT = Path(__file__).parents[1]
_FIRST_STEP = """
import torch
from benchmarks.models import imdb, train_steps
from benchmarks.timing import Options
task = imdb(Options(small=True))
train_steps(task.build("kep"), [task.batch])()
"""


def contests(options: Options) -> Iterator[Contest]:
    """Each in a process of its own, against one that imports torch and does nothing else."""
    rounds = 1 if options.small else min(options.rounds, 7)
    programs = {
        "import torch": "import torch",
        "kepsvgp --help": "import sys; sys.argv = ['kepsvgp', '--help']; "
        "import kepsvgp.cli; kepsvgp.cli.main()",
        "import kepsvgp": "import kepsvgp",
        "from kepsvgp import KEPAttention": "from kepsvgp import KEPAttention",
        "first training step": _FIRST_STEP,
    }
    contenders = {name: _program(code) for name, code in programs.items()}
    results = compare(contenders, baseline="import torch", rounds=rounds, turn=0.0, warmup=1)
    yield Contest("start", "import torch", results)


def _program(code: str) -> Callable[[], object]:
    command = [sys.executable, "-c", code]
    return lambda: subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
