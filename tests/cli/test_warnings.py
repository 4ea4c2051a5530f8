"""What a user sees of a warning."""

import sys
import warnings

import pytest

from kepsvgp.cli import main
from kepsvgp.metrics import UndefinedMetricWarning


def test_a_warning_is_one_line_that_commands_no_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["kepsvgp", "--version"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main()
        warnings.warn("auroc undefined\x1b[2J", UndefinedMetricWarning, stacklevel=1)
    out, err = capsys.readouterr()
    assert out.startswith("kepsvgp ")
    assert err == "warning: auroc undefined\\x1b[2J\n"
