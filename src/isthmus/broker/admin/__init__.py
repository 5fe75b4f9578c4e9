"""The administration API: Atom documents over HTTP, as the official administration clients speak it.

What it is: an aiohttp application that changes and reads the engine's entities. What it is not: a listener; the broker
serves the application on its ports.
"""

from __future__ import annotations

from isthmus.broker.admin.app import build_admin_app

__all__ = ["build_admin_app"]
