"""Looks for keys in texts and files: as they are, percent-encoded, in base64 and in UTF-16, and for any signature made with one."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

__all__ = ["Search"]

SIGNATURE = re.compile(rb"sig=(?!\*\*\*)[A-Za-z0-9%+/]{30,}")


@dataclass
class Search:
    """Looks for keys."""

    keys: list[str]
    seen: dict[str, str] = field(default_factory=dict)

    def forms(self) -> Iterator[tuple[str, bytes]]:
        for key in self.keys:
            yield "plain", key.encode()
            yield "percent-encoded", quote(key, safe="").encode()
            yield "base64", base64.b64encode(key.encode()).rstrip(b"=")
            yield "UTF-16", key.encode("utf-16-le")

    def text(self, where: str, content: str | bytes) -> None:
        raw = content.encode() if isinstance(content, str) else content
        for form, wanted in self.forms():
            at = raw.find(wanted)
            assert at < 0, f"{where} holds a key ({form}): {raw[max(0, at - 200) : at + len(wanted) + 50]!r}"
        found = SIGNATURE.search(raw)
        assert found is None, f"{where} holds a signature: {raw[max(0, found.start() - 200) : found.end()]!r}"

    def files(self, folder: Path) -> int:
        """Every file below a folder; how many."""
        count = 0
        for parent, _, names in os.walk(folder):  # which, unlike rglob, passes over folders that go meanwhile
            for path in (Path(parent, name) for name in names):
                if path.is_symlink() or not path.is_file():
                    continue
                try:
                    content = path.read_bytes()
                except OSError:
                    continue
                self.text(str(path), content)
                count += 1
        return count
