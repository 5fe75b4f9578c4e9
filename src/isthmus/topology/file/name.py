"""The name of the federation file where none is given; a module of its own, since verbs that read no file need it for their help."""

from __future__ import annotations

__all__ = ["DEFAULT_FILE"]

DEFAULT_FILE = "isthmus.yaml"
