"""HTTP as the driver sees it (`isthmus.connectors.system`): nothing can be created or browsed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.http.client import HttpClient
from isthmus.connectors.http.option import read_source, read_target
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.system import Peek
from isthmus.errors import ConnectionLostError, UnsupportedError

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "HttpSystem"]


class HttpSystem:
    """The kind `http`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """An administration that reports every address as existing."""
        from isthmus.connectors.static_administration import StaticAdministration

        options = namespace.options()
        return StaticAdministration(options.get("url") or options.get("listen", ""))

    def identity(self, options: Mapping[str, str]) -> str:
        """Of a target its address, of a listener that of its spool."""
        if options.get("url"):
            return HttpClient(options["url"], 1.0).address
        read = read_source({**options, "entity": options.get("entity", "x")})
        return SpoolFolder(read.spool).identity()

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """Address and port."""
        return [HttpClient(options["url"], 1.0).address] if options.get("url") else [options.get("listen", "")]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Connects to the address of a target; does nothing for a listener."""
        if reads:
            read_source({**options, "entity": entity})
            return
        read = read_target({**options, "entity": entity})
        client = HttpClient(
            read.url,
            read.timeout_seconds,
            ca_file=read.ca_file,
            certificate_file=read.client_certificate_file,
            key_file=read.client_key_file,
        )
        try:
            client.connect()
        except OSError as error:
            raise ConnectionLostError(f"{client.address}: {error}") from None
        finally:
            client.close()

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> None:
        """None: only its route knows how many messages wait at a listener."""

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Refuses: posted messages cannot be browsed.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"'{entity}': posted messages cannot be browsed")


SYSTEM = HttpSystem()
