"""A forced fail-over, on disk before the federation file is read as a whole.

What it is: the switch alone, for a verb that applications wait for: reading and checking a federation file takes longer than the
rest of its start. Only the two namespaces of the pair are read from the file. What it is not: the rest of the fail-over
(`isthmus.pairing.pair_session`), which reads the whole file.

Invariants:
    I1. Nothing is switched unless the file declares the pair with the members that the state has.
    I2. A fault elsewhere in the file does not delay a forced fail-over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isthmus.errors import IsthmusError
from isthmus.pairing.state.state import PairState
from isthmus.pairing.state.state_file import StateFile

__all__ = ["switch_at_once"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def switch_at_once(file: str | Path, pair: str, folder: Path, to: str = "") -> PairState | None:
    """Make the standby member the active one.

    Args:
        file: the federation file.
        pair: the pair's name.
        folder: state folder of the file.
        to: alias of the member that is to be active; empty for the standby member.

    Returns:
        The state then, which may still need the rest of the work; None if nothing was switched: reading the whole file
        reports why.

    Raises:
        StateFileError: the disk refuses the new state; the old one is kept.
        InvalidArgumentError: a fail-over from that member is in progress.
    """
    members = _members(file, pair)
    if members is None or (to and to not in members):
        return None
    kept = StateFile(folder, pair)
    try:
        state = kept.load()
    except IsthmusError:
        return None
    if state.pair != pair or {state.active, state.standby} != members:
        return None
    return kept.change(lambda state: state.begin_forced(time.time(), to))


def _members(file: str | Path, pair: str) -> set[str] | None:
    """The namespaces that the file declares for a pair; None if that is not plain."""
    try:
        with Path(file).open("rb") as stream:
            root = yaml.load(stream, _LOADER)  # noqa: S506 - both are safe loaders
        declared = root["pairs"][pair]
        primary, secondary = declared["primary"], declared["secondary"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(declared, Mapping) or not isinstance(primary, str) or not isinstance(secondary, str):
        return None
    return {primary, secondary}
