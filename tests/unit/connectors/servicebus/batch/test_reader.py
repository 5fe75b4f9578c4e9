"""The receiving of a batch, as far as it needs no namespace."""

import os
import time
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.connectors.servicebus.batch.reader import _Receiving
from isthmus.connectors.servicebus.batch.store import BatchStore
from isthmus.connectors.servicebus.option import SourceOptions


@pytest.mark.parametrize(("before_seconds", "is_guarded"), [(1, True), (3600, False)])
def test_a_message_that_is_read_late_is_guarded_as_when_it_was_asked_for_i3(
    tmp_path: Path, before_seconds: int, is_guarded: bool
) -> None:
    """The process, or the network, stood still meanwhile: locks that it was sent past have expired."""
    store = BatchStore(tmp_path)
    store.guard()
    guard = tmp_path / "guard"
    os.utime(guard, (time.time() - before_seconds,) * 2)
    receiving = _Receiving(SourceOptions(connection="env:PLACE", entity="q"), store, 1, 0, 0)
    os.utime(guard, (time.time() - before_seconds - 600,) * 2)
    receiving._learn(section.encode_message(b"body"))
    assert receiving._guarded is is_guarded
