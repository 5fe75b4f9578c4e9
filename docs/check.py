"""Checks the documentation: links lead somewhere, generated pages are current, no page names a machine.

Run by `make check`. Exits with 1 and one line for each fault.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generate import pages

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/")
VERB = re.compile(r"^ {4}isthmus ([a-z]+)", re.MULTILINE)


def faults() -> list[str]:
    """What is wrong, one line each."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = []
    for name in listing.stdout.split():
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        found += [
            f"{name}: link to {target}, which does not exist"
            for target in LINK.findall(text)
            if "://" not in target and not (page.parent / target).exists()
        ]
        found += [f"{name}: names a folder of some machine: {match[0]}" for match in MACHINE.finditer(text)]
        found += [
            f"{name}: shows `isthmus {verb}`, which is no verb"
            for verb in VERB.findall(text)
            if not (ROOT / "src" / "isthmus" / "cli" / f"{verb}.py").exists()
        ]
    for page, text in pages().items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            found.append(f"{page.relative_to(ROOT)}: not what the code says; run `make docs`")
    return found


if __name__ == "__main__":
    for fault in faults():
        print(fault)
    sys.exit(1 if faults() else 0)
