"""How every command shows its help."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose flags are shown as flags, without a type to give."""

    def get_params(self, ctx: Any) -> list:
        """The parameters, of which flags name no value."""
        return _without_values(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, whose flags are shown likewise."""

    def get_params(self, ctx: Any) -> list:
        """The parameters, of which flags name no value."""
        return _without_values(super().get_params(ctx))


def _without_values(params: list) -> list:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
