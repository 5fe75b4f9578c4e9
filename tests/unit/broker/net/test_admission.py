from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.net.admission import Admission, AdmissionLimits


@dataclass
class Connection:
    number: int
    peer: str = "host:1"
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True


def enter(admission: Admission, number: int, host: str = "a") -> int | None:
    evicted = admission.enter(number, host, Connection(number))
    return None if evicted is None else evicted.number  # type: ignore[attr-defined]


def test_the_oldest_of_the_host_that_has_the_most_goes_i2() -> None:
    admission = Admission(AdmissionLimits(strangers=4))
    assert [enter(admission, number, "flood") for number in (1, 2, 3)] == [None] * 3
    assert enter(admission, 4, "other") is None
    assert enter(admission, 5, "other") == 1
    assert enter(admission, 6, "third") == 2
    assert admission.strangers == 4
    assert admission.evicted_total == 2


def test_who_has_shown_a_token_is_not_counted_with_strangers_i1() -> None:
    admission = Admission(AdmissionLimits(strangers=2))
    for number in range(10):
        assert enter(admission, number) is None
        admission.know(number)
    assert (admission.strangers, admission.sockets) == (0, 10)
    assert [enter(admission, number) for number in (10, 11, 12, 13)] == [None, None, 10, 11]


def test_strangers_go_first_where_all_sockets_are_too_many_i1() -> None:
    admission = Admission(AdmissionLimits(sockets=3, strangers=3))
    assert [enter(admission, number) for number in (1, 2, 3)] == [None] * 3
    admission.know(1)
    assert enter(admission, 4) == 2
    admission.know(3)
    admission.know(4)
    assert enter(admission, 5) == 5
    admission.leave(1)
    assert enter(admission, 6) is None


def test_a_descriptor_that_is_given_again_counts_once() -> None:
    admission = Admission()
    enter(admission, 7)
    admission.know(7)
    enter(admission, 7)
    assert (admission.strangers, admission.sockets) == (1, 1)
    admission.leave(7)
    admission.leave(7)
    admission.know(7)
    assert admission.sockets == 0


@given(st.lists(st.tuples(st.sampled_from(["enter", "know", "leave"]), st.integers(0, 12), st.sampled_from("abc"))))
def test_the_account_is_bounded_i3(steps: list[tuple[str, int, str]]) -> None:
    admission = Admission(AdmissionLimits(sockets=6, strangers=4))
    for what, number, host in steps:
        if what == "enter":
            enter(admission, number, host)
        else:
            getattr(admission, what)(number)
        assert admission.strangers <= 4
        assert admission.sockets <= 6
        assert sum(map(len, admission._by_host.values())) == admission.strangers
        assert all(admission._by_host.values())
