"""The namespace of a verb: `--connection`, `--namespace ALIAS` of a federation file, or `--data`.

What it is: the options that all verbs about entities and messages share, and the same texts for the same options. What it is not:
the search (`isthmus.operations.address`).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.candidate import aliases, entities
from isthmus.errors import EntityNotFoundError, IsthmusError
from isthmus.topology.file.name import DEFAULT_FILE

__all__ = [
    "DEFAULT_FILE",
    "DEAD_LETTER",
    "FILTER",
    "JSON",
    "KEEP_IDS",
    "MAX",
    "NEW_IDS",
    "YES",
    "Alias",
    "CaFile",
    "Connection",
    "Data",
    "Entity",
    "Federation",
    "address_of",
    "entity_path",
    "near_names",
    "target_of",
]

Connection = Annotated[
    str,
    typer.Option(
        "--connection",
        help="Reference to the connection string: env:NAME, file:/path#key or keyvault:vault/name. By default env:ISTHMUS_CONNECTION.",
    ),
]
Alias = Annotated[
    str,
    typer.Option("--namespace", metavar="ALIAS", help="A namespace of the federation file.", autocompletion=aliases),
]
Federation = Annotated[
    str, typer.Option("--federation", metavar="FILE", help="The federation file that has the alias of --namespace.")
]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", help="Data folder of a namespace that runs on this machine.")
]
CaFile = Annotated[
    str,
    typer.Option(
        "--ca-file", help="PEM file of the authority to trust; by default ISTHMUS_CA_FILE, else the system's."
    ),
]
Entity = Annotated[
    str,
    typer.Argument(help="A queue, topic/Subscriptions/name, or a topic (scheduled messages).", autocompletion=entities),
]

DEAD_LETTER = typer.Option("--dead-letter", help="Its dead-letter queue instead.")
FILTER = typer.Option(
    "--filter", help="A SQL filter like those of subscriptions; without one, all messages are selected."
)
JSON = typer.Option("--json", help="Print one JSON object.")
YES = typer.Option("--yes", help="Do it; without this only the number of messages is shown.")
MAX = typer.Option("--max", help="At most so many; 0: all.", min=0)
NEW_IDS = typer.Option("--new-message-ids", help="Give the sent messages new MessageIds.")
KEEP_IDS = typer.Option(
    "--keep-message-ids", help="Send although the target may drop messages as duplicates, or cannot be queried."
)


def address_of(connection: str, alias: str, federation: str, data: Path | None, ca_file: str) -> Any:
    """The namespace that the options name (`isthmus.operations.address.Address`).

    Raises:
        IsthmusError: they name none, or more than one, or cannot be resolved.
    """
    from isthmus.operations.address import find_address

    return find_address(connection=connection, alias=alias, federation=federation, data=data, authority=ca_file)


def target_of(connection: str, alias: str, federation: str, data: Path | None, ca_file: str) -> Any:
    """The endpoints of that namespace (`isthmus.operations.server.target.Target`).

    Raises:
        IsthmusError: as for `address_of`.
    """
    return address_of(connection, alias, federation, data, ca_file).target()


@contextlib.contextmanager
def near_names(address: Any, path: str) -> Iterator[None]:
    """Within, an entity that is not found is reported with the nearest existing name."""
    from isthmus.connectors.servicebus.entity import Entities

    try:
        yield
    except EntityNotFoundError as error:
        # Without the right to list entities there is no hint.
        with contextlib.suppress(IsthmusError), Entities(address.administration()) as namespace:
            found = difflib.get_close_matches(path, namespace.paths(), n=1, cutoff=0.6)
            if found and found[0] != path:
                error.add_note(f"did you mean {found[0]}?")
        raise


def entity_path(entity: str, *, dead_letter: bool = False) -> str:
    """An entity's path, or that of its dead-letter queue."""
    from isthmus.topology.redrive import DEAD_LETTER_SUFFIX

    path = entity.strip("/")
    if path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
        return path[: -len(DEAD_LETTER_SUFFIX)] + DEAD_LETTER_SUFFIX  # the usual spelling: case matters elsewhere
    return path + DEAD_LETTER_SUFFIX if dead_letter else path
