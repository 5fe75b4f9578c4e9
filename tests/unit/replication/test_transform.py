"""Custom steps by their names."""

from __future__ import annotations

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.replication.transform import apply_steps, find_step


def test_steps_are_found_and_applied_in_order() -> None:
    assert find_step("os.path:basename")("/a/b") == "b"  # type: ignore[arg-type]
    assert apply_steps("/a/b", [find_step("os.path:dirname"), find_step("os.path:dirname")]) == "/"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("step", "write package.module:function"),
        ("no_such_module:f", "cannot be imported"),
        ("os.path:no", "no function"),
    ],
)
def test_a_step_that_is_not_there_is_named(name: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        find_step(name)
