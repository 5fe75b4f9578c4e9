"""isthmus.broker.connection.partial_account."""

from __future__ import annotations

from types import SimpleNamespace

from isthmus.broker.connection.partial_account import PartialAccount
from isthmus.errors import ServerBusyError


def test_the_client_that_makes_it_too_much_is_told_i1() -> None:
    together = SimpleNamespace(partial_bytes=0)
    one, other = PartialAccount(together, 100), PartialAccount(together, 100)
    assert one.update(60) is None
    assert isinstance(other.update(60), ServerBusyError)
    assert one.update(50) is None, "who holds less is not at fault"
    assert together.partial_bytes == 110


def test_what_a_client_held_is_taken_off_once_i2() -> None:
    together = SimpleNamespace(partial_bytes=7)
    account = PartialAccount(together, 100)
    account.update(60)
    account.release()
    account.release()
    assert (account.nbytes, together.partial_bytes) == (0, 7)
