import pytest
from typer.testing import CliRunner

from kepsvgp.cli import app
from kepsvgp.config.file import find_config
from kepsvgp.config.shipped import shipped_configs
from kepsvgp.errors import UserError


def shown(*command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ((), "--version"),
        (("train",), "--resume"),
        (("predict",), "--skip-bad"),
        (("data", "fetch"), "--keep"),
    ],
)
def test_flags_are_shown_without_a_value(command: tuple[str, ...], flag: str) -> None:
    assert flag in shown(*command)
    assert "<bool>" not in shown(*command)


def test_shipped_configurations_are_named() -> None:
    assert "digits-small" in shipped_configs()
    for command in ("train", "compare"):
        assert all(name in shown(command) for name in shipped_configs())


def test_near_miss_of_a_configuration_is_suggested() -> None:
    with pytest.raises(UserError, match=r"Did you mean cifar10-small\?"):
        find_config("cifar10-smal")
