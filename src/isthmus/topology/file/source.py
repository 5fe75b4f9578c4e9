"""The federation file on disk.

What it is: reading the file, and checking the files that it names, for the verbs of the command line. What it is not: the parse.
"""

from __future__ import annotations

from pathlib import Path

from isthmus.errors import ConfigError, Fault
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.linter import read
from isthmus.topology.model import Federation
from isthmus.topology.step.material import check_material

__all__ = ["file_faults", "load", "load_text"]


def load_text(file: str | Path) -> str:
    """The file's text.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        fault = Fault("there is no such file", "start with one from: isthmus init all-active", str(file))
    except UnicodeDecodeError:
        fault = Fault("the file is not UTF-8 text", "save it as UTF-8", str(file))
    except OSError as error:
        fault = Fault(f"the file cannot be read ({error.strerror})", "", str(file))
    raise ConfigError([fault])


def load(file: str | Path = DEFAULT_FILE) -> Federation:
    """The federation that a file declares, with paths made absolute from the file's folder.

    Raises:
        ConfigError: the file cannot be read, or has faults: all of them.
    """
    federation = read(load_text(file), str(file))
    faults = file_faults(federation)
    if faults:
        raise ConfigError(faults)
    return federation.anchored(Path(file).absolute().parent)


def file_faults(federation: Federation) -> list[Fault]:
    """The faults of the files that a federation names."""
    return check_material(federation, Path(federation.file).absolute().parent)
