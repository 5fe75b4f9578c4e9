"""Event Grid for the driver (`isthmus.connectors.system`): its data plane creates nothing, and cannot browse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.eventgrid.option import TargetOptions, read_source, read_target
from isthmus.connectors.eventgrid.service import EventGrid
from isthmus.connectors.http.client import HttpClient
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.system import Peek
from isthmus.errors import ConnectionLostError, UnsupportedError

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "EventGridSystem"]


class EventGridSystem:
    """The kind `eventgrid`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """An administration that reports every topic as existing."""
        from isthmus.connectors.static_administration import StaticAdministration

        options = namespace.options()
        return StaticAdministration(options.get("endpoint") or options.get("listen", ""))

    def identity(self, options: Mapping[str, str]) -> str:
        """The address of the namespace, or of the topic; empty for a listener."""
        return HttpClient(options["endpoint"], 1.0).address if options.get("endpoint") else ""

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """Address and port."""
        return [self.identity(options)] if options.get("endpoint") else [options.get("listen", "")]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Connects, with a key or a token; does nothing for a listener."""
        merged = {**options, "entity": entity}
        read = read_source({"subscription": "x", **merged}) if reads else read_target(merged)
        if isinstance(read, ListenOptions):
            return
        assert isinstance(read, TargetOptions) or read.subscription
        service = EventGrid(read.service)
        try:
            service.connect()
        except OSError as error:
            raise ConnectionLostError(f"{service.identity}: {error}") from None
        finally:
            service.close()

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> None:
        """None: the data plane does not report it."""

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Refuses: events cannot be browsed.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"topic '{entity}': events cannot be browsed without taking them")


SYSTEM = EventGridSystem()
