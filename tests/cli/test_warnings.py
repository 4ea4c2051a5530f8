"""What a user sees of a warning."""

import warnings

from commands import call

from kepsvgp.metrics import UndefinedMetricWarning


def test_a_warning_is_one_line_that_commands_no_terminal(capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("--version") == 0
        warnings.warn("auroc undefined\x1b[2J", UndefinedMetricWarning, stacklevel=1)
    out, err = capsys.readouterr()
    assert out.startswith("kepsvgp ")
    assert err == "warning: auroc undefined\\x1b[2J\n"
