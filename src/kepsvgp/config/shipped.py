"""The configurations that come with the package."""

from pathlib import Path


def shipped_configs() -> dict[str, Path]:
    """Their files by name."""
    # inside the package once installed; beside `src` in a checkout
    folders = (Path(__file__).parents[1] / "configs", Path(__file__).parents[3] / "configs")
    found = next((sorted(folder.glob("*.toml")) for folder in folders if folder.is_dir()), [])
    return {file.stem: file for file in found}
