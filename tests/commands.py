"""The command line in this process, and a configuration that trains in a moment."""

from pathlib import Path

import pytest

from kepsvgp.cli import main
from kepsvgp.config.file import load_config
from kepsvgp.config.sections import RunConfig

SMALL = Path(__file__).with_name("small.toml")


def small(*changes: str) -> RunConfig:
    """That configuration, with `key=value` changes."""
    return load_config(SMALL, changes)


def call(*arguments: object) -> int:
    """Exit code of `kepsvgp`, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["kepsvgp", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0
