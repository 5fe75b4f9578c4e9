"""Names of the federation file and of the folder beside it; a separate module, since verbs need it before they read a file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEFAULT_FILE", "state_folder"]

DEFAULT_FILE = "isthmus.yaml"


def state_folder(file: str | Path) -> Path:
    """The folder for checkpoints, status and the state of pairs: `.isthmus/<name>` beside the file."""
    path = Path(file).absolute()
    return path.parent / ".isthmus" / path.stem
