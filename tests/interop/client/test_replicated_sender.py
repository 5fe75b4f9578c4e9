"""`ReplicatedSender` between two real namespaces: the failure tables of "Best practices for insulating applications against
Service Bus outages and disasters", as far as they are the sender's."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.client.client_region import Region, eventually, region
from isthmus.client import Failure, RegionsUnavailableError, ReplicatedSender
from isthmus.client.aio import ReplicatedSender as AsyncReplicatedSender
from isthmus.testing.proxy import Weather

# The SDK leaves the socket of a connection that was lost while it opened to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = """\
queues:
  orders: {}
  detecting: {requires_duplicate_detection: true}
  sessions: {requires_session: true}
  small: {max_size_in_megabytes: 1}
"""


@pytest.fixture(scope="module")
def regions() -> Iterator[tuple[Region, Region]]:
    with region(CONFIG) as west, region(CONFIG + "  elsewhere: {}\n") as east:
        yield west, east


@pytest.fixture
def west(regions: tuple[Region, Region]) -> Iterator[Region]:
    yield from _mended(regions[0])


@pytest.fixture
def east(regions: tuple[Region, Region]) -> Iterator[Region]:
    yield from _mended(regions[1])


def _mended(one: Region) -> Iterator[Region]:
    one.mend()
    yield one
    one.mend()
    one.drain("orders")


Call = Callable[..., Awaitable[Any]]


class Driver:
    """A sender for threads or for asyncio, with one face."""

    def __init__(self, kind: Any, west: Region, east: Region, entity: str = "orders", **options: Any) -> None:
        self.sender = kind(west.connection_string, east.connection_string, entity, **options)

    async def send(self, message: Any) -> Any:
        return await self._awaited(self.sender.send_messages, message)

    async def call(self, name: str, *arguments: Any) -> Any:
        return await self._awaited(getattr(self.sender, name), *arguments)

    async def _awaited(self, call: Any, *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(call):
            return await call(*arguments)
        return await asyncio.to_thread(call, *arguments)


Make = Callable[..., Driver]


@pytest.fixture(params=[ReplicatedSender, AsyncReplicatedSender], ids=["sync", "async"])
async def make(request: pytest.FixtureRequest, west: Region, east: Region) -> AsyncIterator[Make]:
    made: list[Driver] = []

    def driver(**options: Any) -> Driver:
        made.append(Driver(request.param, west, east, **options))
        return made[-1]

    yield driver
    for each in made:
        await each.call("close")


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"%d" % number, message_id=f"m{number}")


# ---- passive


async def test_m1_stays_in_the_primary_m2_goes_by_the_secondary_and_m1_comes_later(
    make: Make, west: Region, east: Region
) -> None:
    driver = make(mode="passive")
    assert (await driver.send(message(1))).taken == ("primary",)
    west.cut()
    result = await driver.send(message(2))
    assert result.taken == ("secondary",)
    assert result.active == "secondary"
    assert east.ids("orders") == ["m2"]
    west.mend()
    assert west.ids("orders") == ["m1"]


async def test_a_lost_acknowledgement_makes_a_duplicate_of_one_message_id_and_no_loss(
    make: Make, west: Region, east: Region
) -> None:
    driver = make(mode="passive")
    await driver.send(message(1))
    west.silence()
    result = await driver.send(message(2))
    assert result.taken == ("secondary",)
    assert result.unknown == ("primary",)
    west.mend()
    assert east.ids("orders") == ["m2"]
    assert west.ids("orders") == ["m1", "m2"]


async def test_a_namespace_that_hangs_is_left_within_a_second(make: Make, west: Region, east: Region) -> None:
    driver = make(mode="passive")
    await driver.send(message(1))
    eventually(lambda: driver.sender._lanes[_secondary()].is_open)
    with west.frozen():
        began = time.monotonic()
        result = await driver.send(message(2))
        seconds = time.monotonic() - began
        again = time.monotonic()
        await driver.send(message(3))
    print(
        f"first send at the secondary {seconds:.2f} s after the primary hung, the next took {time.monotonic() - again:.3f} s"
    )
    assert result.taken == ("secondary",)
    # The attempt that is given up is 0.8 s; a loaded machine may add to the rest, the SDK's own time-outs are minutes.
    assert seconds < 5


def test_a_standby_that_was_a_black_hole_is_ready_again_soon_after_it_is_back(west: Region, east: Region) -> None:
    """By itself the SDK waits for ever for a peer that accepts its connection and says nothing."""
    stalled = Weather(is_stalled=True)
    with ReplicatedSender(
        west.connection_string, east.connection_string, "orders", mode="passive", connect_timeout=1.0
    ) as sender:
        sender.send_messages(message(1))
        west.proxy.set_weather(stalled)
        assert sender.send_messages(message(2)).taken == ("secondary",)
        until = time.monotonic() + 3
        while time.monotonic() < until:  # its link is tried meanwhile, and hangs
            assert sender.send_messages(message(3)).taken == ("secondary",)
            time.sleep(0.05)
        west.mend()
        lane = sender._lanes[_primary()]

        def ready() -> bool:
            sender.send_messages(message(4))
            return bool(lane.is_open)

        eventually(ready)
        east.proxy.set_weather(stalled)
        assert sender.send_messages(message(5)).taken == ("primary",)
    east.mend()


async def test_if_both_are_unavailable_the_roles_stay_and_sending_continues_when_one_is_back(
    make: Make, west: Region, east: Region
) -> None:
    driver = make(mode="passive")
    await driver.send(message(1))
    west.cut()
    east.cut()
    with pytest.raises(RegionsUnavailableError) as raised:
        await driver.send(message(2))
    assert isinstance(raised.value, ServiceBusError)
    assert driver.sender.active == "primary"
    east.mend()

    async def sent() -> bool:
        try:
            return bool((await driver.send(message(2))).taken == ("secondary",))
        except RegionsUnavailableError:
            return False

    limit = time.monotonic() + 30
    while not await sent():
        assert time.monotonic() < limit
        await asyncio.sleep(0.1)
    assert driver.sender.active == "secondary"


async def test_roles_survive_a_restart_and_are_given_back_by_hand(
    make: Make, west: Region, east: Region, tmp_path: Path
) -> None:
    first = make(mode="passive", state=tmp_path / "roles")
    west.cut()
    assert (await first.send(message(1))).active == "secondary"
    west.mend()
    second = make(mode="passive", state=tmp_path / "roles")
    assert (await second.send(message(2))).taken == ("secondary",)
    await second.call("switch_to", "primary")
    assert (await make(mode="passive", state=tmp_path / "roles").send(message(3))).taken == ("primary",)


async def test_a_message_that_is_too_large_is_refused_with_the_sdks_error_and_no_role_changes(make: Make) -> None:
    driver = make(mode="passive")
    with pytest.raises(MessageSizeExceededError):
        await driver.send(ServiceBusMessage(b"x" * 2_000_000))
    with pytest.raises(TypeError):
        await driver.send(42)
    assert driver.sender.active == "primary"
    assert driver.sender.statistics().circuits["primary"]["failures"] == 0


@contextmanager
def _administration(one: Region) -> Iterator[ServiceBusAdministrationClient]:
    ns = one.namespace
    with ServiceBusAdministrationClient.from_connection_string(
        ns.admin_connection_string, connection_verify=str(ns.ca_file)
    ) as made:
        yield made


@contextmanager
def _missing(one: Region) -> Iterator[str]:
    yield "elsewhere"


@contextmanager
def _disabled(one: Region) -> Iterator[str]:
    with _administration(one) as administration:
        queue = administration.get_queue("orders")
        queue.status = "Disabled"
        administration.update_queue(queue)
        try:
            yield "orders"
        finally:
            queue.status = "Active"
            administration.update_queue(queue)


@contextmanager
def _full(one: Region) -> Iterator[str]:
    text = one.namespace.connection_string
    with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("small") as sender:
        for size in (200_000, 10_000, 500):
            with suppress(ServiceBusQuotaExceededError):
                for _ in range(100):
                    sender.send_messages(ServiceBusMessage(b"x" * size))
    yield "small"
    one.drain("small")


@pytest.mark.parametrize(
    ("trouble", "error", "failure"),
    [
        # By CBS the SDK gets the missing entity as a refusal of the token.
        (_missing, ServiceBusAuthenticationError, Failure.FORBIDDEN),
        (_disabled, MessagingEntityDisabledError, Failure.DISABLED),
        (_full, ServiceBusQuotaExceededError, Failure.FULL),
    ],
    ids=["missing", "disabled", "full"],
)
async def test_an_entity_that_is_missing_disabled_or_full_raises_the_sdks_error_and_the_roles_stay(
    make: Make, trouble: Any, error: type[ServiceBusError], failure: Failure, west: Region, east: Region
) -> None:
    """Also by the first send, while the link is still being opened."""
    with trouble(west) as entity:
        driver = make(mode="passive", entity=entity)
        for _ in range(2):
            with pytest.raises(error):
                await driver.send(ServiceBusMessage(b"x" * 1000))
        assert driver.sender.active == "primary"
        assert east.ids(entity) == []
        named = make(mode="passive", entity=entity, fail_over_on={Failure.GONE, Failure.UNKNOWN, failure})
        result = await named.send(ServiceBusMessage(b"x" * 1000, message_id="m2"))
        assert (result.taken, result.active) == (("secondary",), "secondary")
    assert east.ids(entity) == ["m2"]


def test_a_wrong_key_raises_the_sdks_error_and_the_roles_stay(west: Region, east: Region) -> None:
    wrong = west.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    for fail_over_on, taken in ((None, ""), ({Failure.FORBIDDEN}, "secondary")):
        options: dict[str, Any] = {} if fail_over_on is None else {"fail_over_on": fail_over_on}
        with ReplicatedSender(wrong, east.connection_string, "orders", mode="passive", **options) as sender:
            if taken:
                assert sender.send_messages(message(2)).taken == (taken,)
            else:
                with pytest.raises(ServiceBusError, match="client-error"):
                    sender.send_messages(message(1))
                assert sender.active == "primary"
    assert east.ids("orders") == ["m2"]


async def test_a_lost_connection_is_opened_again_or_the_secondary_takes_over(
    make: Make, west: Region, east: Region
) -> None:
    driver = make(mode="passive")
    await driver.send(message(1))
    west.proxy.cut()
    result = await driver.send(message(2))
    found = west.ids("orders") + east.ids("orders")
    assert set(found) == {"m1", "m2"}
    assert result.taken in (("primary",), ("secondary",))


# ---- active


async def test_both_get_every_message_under_one_id(make: Make, west: Region, east: Region) -> None:
    driver = make()
    result = await driver.send([ServiceBusMessage(b"a"), ServiceBusMessage(b"b", application_properties={"n": 7})])
    assert result.taken == ("primary", "secondary")
    there, here = west.received("orders"), east.received("orders")
    assert [each.message_id for each in there] == [each.message_id for each in here] == list(result.message_ids)
    assert there[1].application_properties == {b"n": 7}


async def test_one_is_enough_and_the_other_is_repaired_from_the_outbox_in_order(
    make: Make, west: Region, east: Region, tmp_path: Path
) -> None:
    driver = make(outbox=tmp_path / "outbox")
    await driver.send(message(0))
    west.cut()
    results = [await driver.send(message(number)) for number in range(1, 6)]
    assert all(result.taken == ("secondary",) and result.pending == ("primary",) for result in results)
    assert east.ids("orders") == [f"m{number}" for number in range(6)]
    west.mend()
    outbox = driver.sender._outboxes[_primary()]
    await asyncio.to_thread(eventually, lambda: outbox.is_empty)
    found = west.ids("orders")
    assert list(dict.fromkeys(found)) == [f"m{number}" for number in range(6)]
    assert (await driver.send(message(6))).taken == ("primary", "secondary")


async def test_the_outbox_of_a_sender_that_ended_is_delivered_by_the_next(
    make: Make, west: Region, east: Region, tmp_path: Path
) -> None:
    first = make(outbox=tmp_path / "outbox")
    west.cut()
    assert (await first.send(message(1))).pending == ("primary",)
    await first.call("close")
    west.mend()
    second = make(outbox=tmp_path / "outbox")
    await asyncio.to_thread(eventually, lambda: second.sender._outboxes[_primary()].is_empty)
    assert set(west.ids("orders")) == {"m1"}


async def test_without_an_outbox_what_was_missed_is_reported(make: Make, west: Region) -> None:
    driver = make()
    await driver.send(message(1))
    west.cut()
    assert (await driver.send(message(2))).missed == ("primary",)
    statistics = driver.sender.statistics()
    assert statistics.sent == 2
    assert statistics.missed["primary"] == 1


async def test_what_both_refuse_is_raised(make: Make) -> None:
    driver = make(entity="sessions")
    with pytest.raises(ServiceBusError, match="SessionId"):
        await driver.send(message(1))


async def test_messages_are_scheduled_at_both(make: Make, west: Region, east: Region) -> None:
    driver = make()
    when = datetime.now(UTC) + timedelta(seconds=2)
    result = await driver.call("schedule_messages", message(1), when)
    assert result.taken == ("primary", "secondary")
    assert west.ids("orders", wait=0.3) == []
    for one in (west, east):
        [found] = one.received("orders", wait=10, count=1)
        assert found.enqueued_time_utc >= when.replace(microsecond=0)


def _primary() -> Any:
    from isthmus.client.send.replication import Side

    return Side.PRIMARY


def _secondary() -> Any:
    from isthmus.client.send.replication import Side

    return Side.SECONDARY
