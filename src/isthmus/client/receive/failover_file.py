"""The file in which a failover receiver stores its state.

What it is: state and watermark as JSON, written to a temporary file that replaces the file, so that a kill leaves the old or the new state.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from isthmus.client.receive.failover import FailoverState
from isthmus.errors import IsthmusError
from isthmus.whole_file import write_file

__all__ = ["FailoverFile", "FailoverStateError"]

_LOGGER = logging.getLogger(__name__)
_VERSION = 1


class FailoverStateError(IsthmusError):
    """The file with the state of a failover receiver cannot be read or written."""

    code = "failover-state"

    def __init__(self, path: str = "", reason: str = "") -> None:
        super().__init__("", path=path, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return f"{a.get('path')}: {a.get('reason')}; repair the file, or remove it to begin at the primary"


class FailoverFile:
    """The state file.

    Args:
        path: of the file.

    Attributes:
        is_new: whether the file did not exist when it was read.
    """

    def __init__(self, path: Path) -> None:
        self.is_new = False
        self._path = path
        self._written: tuple[FailoverState, int] | None = None

    def read(self) -> tuple[FailoverState, int]:
        """State and watermark; the initial ones if there is no file.

        Raises:
            FailoverStateError: the file cannot be read.
        """
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            if stored["version"] != _VERSION:
                raise FailoverStateError(
                    str(self._path), f"is of version {stored['version']}, this program reads {_VERSION}"
                )
            return FailoverState(stored["state"]), int(stored["watermark_ms"])
        except FileNotFoundError:
            self.is_new = True
            return FailoverState.PRIMARY, 0
        except OSError as error:
            raise FailoverStateError(str(self._path), error.strerror or str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FailoverStateError(str(self._path), f"is no state of a failover receiver ({error})") from None

    def write(self, state: FailoverState, watermark_ms: int) -> None:
        """Writes both to disk; a write that fails is logged, since the effects of the state must not wait for it."""
        if (state, watermark_ms) == self._written:
            return
        text = json.dumps({"version": _VERSION, "state": state.value, "watermark_ms": watermark_ms})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path, text.encode(), suffix=f".{os.getpid()}.new")
        except OSError as error:
            _LOGGER.error("%s", FailoverStateError(str(self._path), error.strerror or str(error)))
            return
        self._written = (state, watermark_ms)
