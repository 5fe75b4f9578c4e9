"""A message as one line of JSON.

Its letters are readable where the output can have them. Elsewhere they are JSON's escapes: those that Python would write instead are none of
JSON's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["json_line"]


def json_line(message: dict[str, Any]) -> str:
    """One line, without its end."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    return json.dumps(message, ensure_ascii=encoding.lower().replace("-", "") != "utf8")
