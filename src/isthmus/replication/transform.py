"""Steps of a route: plain functions from DataFrame to DataFrame, named in the federation file.

What it is: finding the function that `python: package.module:function` names, and applying steps in order. What it is
not: the steps. A step marks rows (columns `disposition` and `reason`) instead of removing them; rows that vanish all the
same are given back to their source, and the lease's error names the steps.

Invariants:
    I1. A name that leads to no function is refused before anything starts, with what was looked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Step", "apply_steps", "find_step"]

Step: TypeAlias = "Callable[[DataFrame], DataFrame]"


def find_step(name: str) -> Step:
    """The function that `package.module:function` names.

    Raises:
        InvalidArgumentError: there is none.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InvalidArgumentError(f"step '{name}': write package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidArgumentError(f"step '{name}': the module cannot be imported ({error})") from None
    found: Step | None = getattr(module, function_name, None)
    if not callable(found):
        raise InvalidArgumentError(f"step '{name}': {module_name} has no function {function_name}")
    return found


def apply_steps(rows: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """The rows after all steps."""
    for step in steps:
        rows = step(rows)
    return rows
