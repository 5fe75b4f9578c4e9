"""What a receiver of HTTP requests is not asked. As a source, a listener has its own tests (interop/connector/test_http.py): it is no server apart."""

from __future__ import annotations

WAIVERS: dict[tuple[str, str, str], str] = {}
