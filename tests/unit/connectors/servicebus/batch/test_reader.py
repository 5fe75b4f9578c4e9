"""Receiving a batch, without a namespace."""

import os
import time
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.connectors.servicebus.batch.reader import _Receiving
from isthmus.connectors.servicebus.batch.store import BatchStore
from isthmus.connectors.servicebus.option import SourceOptions


@pytest.mark.parametrize(("before_seconds", "is_guarded"), [(1, True), (3600, False)])
def test_a_message_that_is_read_late_is_guarded_as_when_it_was_asked_for_i3(
    tmp_path: Path, before_seconds: int, is_guarded: bool
) -> None:
    """The process, or the network, was suspended meanwhile: the locks have expired."""
    store = BatchStore(tmp_path)
    store.guard()
    guard = tmp_path / "guard"
    os.utime(guard, (time.time() - before_seconds,) * 2)
    receiving = _Receiving(SourceOptions(connection="env:PLACE", entity="q"), store, 1, 0, 0)
    os.utime(guard, (time.time() - before_seconds - 600,) * 2)
    receiving._learn(section.encode_message(b"body"))
    assert receiving._guarded is is_guarded


@pytest.mark.parametrize("ahead_seconds", [-3600, -20, 0, 20, 3600])
@pytest.mark.parametrize("configured_seconds", [0, 60])
def test_a_clock_that_is_wrong_shortens_no_guard_and_lengthens_no_renewal_i3(
    tmp_path: Path, ahead_seconds: int, configured_seconds: int
) -> None:
    """A lock of 60 s of a reader that died 50 s ago, by a broker whose clock is apart from this one."""
    store = BatchStore(tmp_path)
    store.guard()
    os.utime(tmp_path / "guard", (time.time() - 50,) * 2)
    options = SourceOptions(connection="env:PLACE", entity="q", lock_seconds=configured_seconds)
    receiving = _Receiving(options, store, 1, 0, 0)
    broker_ms = int((time.time() - ahead_seconds) * 1000)
    reported = {
        "x-opt-enqueued-time": Timestamp(broker_ms - 30_000),
        "x-opt-locked-until": Timestamp(broker_ms + 60_000),
    }
    receiving._learn(section.encode_message(b"body", annotations=reported))
    assert receiving._guarded
    assert receiving._renewal_seconds <= 60
