"""The entities that a namespace starts with, read from a file.

What it is: two layouts read into the same descriptions: isthmus's own YAML and the JSON of the vendor's emulator
(``UserConfig.Namespaces[].Queues/Topics/...``), every fault collected with its position. What it is not: creating the
entities (`provision`), keys, or ports.
Spec: docs/explanation/protocol.md, Administration for the settings; the emulator's Config-schema.json for its layout. An omitted setting
takes the service's default in both layouts, not the emulator's narrower one, by which messages expire after an hour.

Invariants:
    I1. A file that has a fault yields no entities, only the faults, all of them.
    I2. Nothing in a file is ignored: an unknown key is a fault.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from isthmus.broker.config.emulator_layout import EmulatorReader
from isthmus.broker.config.own_layout import OwnReader
from isthmus.broker.config.reader import NamespaceConfig, SubscriptionConfig, TopicConfig
from isthmus.errors import ConfigError, Fault
from isthmus.topology.file.document import Document

__all__ = ["NamespaceConfig", "SubscriptionConfig", "TopicConfig", "load_config", "read_config"]


def load_config(path: Path) -> NamespaceConfig:
    """Read a file.

    Raises:
        ConfigError: with every fault found.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError([Fault(f"the file cannot be read: {reason}", file=str(path))]) from None
    return read_config(text, str(path))


def read_config(text: str, file: str) -> NamespaceConfig:
    """Read either layout; a file with the key ``UserConfig`` is in the emulator's.

    Args:
        text: the file's content.
        file: its name, for faults.

    Raises:
        ConfigError: with every fault found.
    """
    document = Document(file)
    config = NamespaceConfig()
    root = _compose(text, document)
    if root is not None:
        emulator = isinstance(root, yaml.MappingNode) and any(key.value == "UserConfig" for key, _ in root.value)
        reader = EmulatorReader(document) if emulator else OwnReader(document)
        config = reader.read(root)
        config.stated = reader.stated
    if document.faults:
        raise document.error()
    return config


def _compose(text: str, document: Document) -> yaml.Node | None:
    # JSON may be indented by tabs, which YAML forbids; inside JSON's strings a tab cannot be.
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        document.faults.append(
            Fault(f"neither YAML nor JSON: {error.problem or error.context}", "", document.file, *place)
        )
        return None
    except (yaml.YAMLError, RecursionError, ValueError):
        document.faults.append(Fault("neither YAML nor JSON", "save the file as plain UTF-8 text", document.file, 1, 1))
        return None
    if root is None:
        document.faults.append(Fault("the file is empty", "write queues: {orders: {}}", document.file, 1, 1))
    return root
