"""isthmus.transport.management, with requests that are answered at once; with a namespace it is tested in tests/interop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.errors import LockLostError
from isthmus.transport.management import Management


class Node(Management):
    """A node that renews no request with one of the `lost` tokens in it, as Azure's."""

    def __init__(self, lost: Sequence[bytes]) -> None:
        self.lost = set(lost)
        self.under_way = self.most_under_way = 0

    def start_renew(self, tokens: Sequence[bytes]) -> Any:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return tokens

    def finish(self, reply: Any, timeout_seconds: float = 30.0) -> Any:
        self.under_way -= 1
        if self.lost & set(reply):
            raise LockLostError("q")
        return {"expirations": [0] * len(reply)}


def test_renewals_of_several_groups_are_under_way_at_once_and_show_the_lost_ones() -> None:
    groups = [[b"%d" % number for number in range(first, first + 5)] for first in (0, 5, 10)]
    node = Node([b"3", b"12", b"14"])
    assert sorted(node.renew_groups(groups)) == [b"12", b"14", b"3"]
    assert node.most_under_way == 3
    assert Node([]).renew_groups(groups) == []
