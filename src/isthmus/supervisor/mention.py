"""The namespace that the text of an error or of a pause is about.

What it is: a search for an alias of a route's ends in a text. What it is not: the text (`isthmus.errors`, and the sources and targets).
"""

from __future__ import annotations

from isthmus.topology.model import Route

__all__ = ["about", "named"]


def named(route: Route, text: str) -> str:
    """The alias of the namespace whose address is in a text; empty if there is none."""
    ends = (route.source.alias, *(target.alias for target in route.sent_to))
    return next((alias for alias in ends if f"{alias} (" in text), "")


def about(route: Route, text: str) -> tuple[str, str]:
    """The alias of the namespace that a text is about, by default the target's, and a text that names it."""
    ends = (route.source.alias, *(target.alias for target in route.sent_to))
    for alias in ends:
        if text.startswith((f"{alias} (", f"{alias}:")):
            return alias, text
    alias = named(route, text) or route.target.alias
    return alias, text if route.target.is_table else f"{alias}: {text}"
