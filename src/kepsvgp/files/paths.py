"""Paths as users write them."""

from pathlib import Path

from kepsvgp.errors import UserError


def check_name(path: Path) -> None:
    """Refuses a path that is no text, which a file of tensors or a configuration cannot have."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} must be a path in UTF-8; rename it, or give another.") from None


def expanded(path: Path | str) -> Path:
    """The path with `~` and `~user` as the folders they stand for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{path} must begin with the home of a user of this system; there is none of that "
            "name. Write ./ before a folder whose name begins with ~."
        ) from None


def absolute(path: Path | str) -> Path:
    """The path from the root, as it is from every folder; links are followed."""
    return expanded(path).resolve()
