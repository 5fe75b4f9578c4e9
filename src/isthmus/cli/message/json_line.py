"""A message as one line of JSON.

Its letters are readable if the output can encode them. Else they are JSON's escapes: Python's own escapes are not
JSON's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["json_line"]


def json_line(message: dict[str, Any]) -> str:
    """One line, without its end-of-line."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    return json.dumps(message, ensure_ascii=encoding.lower().replace("-", "") != "utf8")
