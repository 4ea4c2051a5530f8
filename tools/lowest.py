"""Prints the lowest versions that pyproject.toml declares, as requirements for pip.

Not of torch, whose builds differ from machine to machine, nor of what only contributors need.
"""

import sys
import tomllib
from itertools import chain
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
groups = [extras[name] for name in extras if name not in ("all", "timm")]
for requirement in chain(project["dependencies"], *groups):
    if not requirement.startswith("torch>="):
        sys.stdout.write(requirement.replace(">=", "==") + "\n")
