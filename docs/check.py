"""Checks the documentation: links and citations lead somewhere, invariants are aligned, examples have no fault, commands and their options exist, generated
pages are current, no page names a machine.

Run by `make check`. Exits with 1 and one line for each fault.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.core import TyperGroup

sys.path.insert(0, str(Path(__file__).parent))

from generate import pages

from isthmus.broker.config.namespace_file import read_config
from isthmus.cli.app import create_app
from isthmus.errors import ConfigError
from isthmus.topology import read

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/")
EXAMPLE = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What code cites: a page of docs/, or a document in capitals at the root.
CITED = re.compile(r"\b(docs/[\w/-]+\.md|[A-Z][A-Z-]+\.md)\b(?:, ([A-Z]\w*(?: \w+)*))?")
PROTOCOL = "docs/explanation/protocol.md"
# A module, or what is in one.
MODULE = re.compile(r"`(isthmus(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?)`")
# An item under `Invariants:`.
ITEM = re.compile(r"\s+[A-Z]+\d+\. ")
# A command line in an indented block, or in one of a shell.
ENTERED = re.compile(r"^(?: {4,}|\$ )?(isthmus [a-z].*)$", re.MULTILINE)
SHELL_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def example_faults(example: str, page: str) -> list[str]:
    """What is wrong in a federation file or a namespace's file; other examples are passed over."""
    try:
        if example.startswith("isthmus:"):
            read(example, page)
        elif re.search(r"^(queues|topics):", example, re.MULTILINE):
            read_config(example, page)
    except ConfigError as error:
        return [f"in an example: {fault}" for fault in error.faults]
    return []


def files(pattern: str) -> list[str]:
    """The files of the project that match a pattern."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listing.stdout.split() if (ROOT / name).exists()]


def citation_faults() -> list[str]:
    """Citations in code that lead nowhere."""
    headings = re.findall(r"^## (.*)$", (ROOT / PROTOCOL).read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    for name in files("*.py"):
        for cited, section in CITED.findall((ROOT / name).read_text(encoding="utf-8")):
            if not (ROOT / cited).exists():
                found.append(f"{name}: cites {cited}, which does not exist")
            elif cited == PROTOCOL and section and not section.startswith(tuple(headings)):
                found.append(f"{name}: cites the section {section} of {cited}, which has none of that name")
    for name in files("*.py"):
        modules = set(MODULE.findall((ROOT / name).read_text(encoding="utf-8")))
        found += [
            f"{name}: cites {each}, which does not exist" for each in sorted(modules) if not leads_somewhere(each)
        ]
    return found


def invariant_faults(name: str, text: str) -> Iterator[str]:
    """Items under `Invariants:` that do not begin in one column, or go on in that column: they would be read as parts of each other."""
    column = -1
    for number, line in enumerate(text.splitlines(), 1):
        begin = len(line) - len(line.lstrip())
        if line.strip() == "Invariants:":
            column = begin + 4
        elif not line.strip() or line.strip() == '"""':
            column = -1
        elif column >= 0 and (begin < column or (begin == column) != bool(ITEM.match(line))):
            yield f"{name}:{number}: is not aligned with the other invariants"


def leads_somewhere(cited: str) -> bool:
    """Whether there is a module of this name, or one that names the last part."""
    for place in (cited, cited.rpartition(".")[0]):
        path = ROOT / "src" / place.replace(".", "/")
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module.is_file():
            last = cited.removeprefix(place).lstrip(".")
            return bool(re.search(rf"\b{last}\b", module.read_text(encoding="utf-8")))
    return False


def entered(text: str) -> list[str]:
    """The command lines of isthmus that a page tells its reader to enter."""
    indented = "\n".join(line for line in FENCED.sub("", text).splitlines() if line.startswith("    isthmus "))
    return [line for block in (indented, *SHELL_BLOCK.findall(text)) for line in ENTERED.findall(block)]


def command_faults(line: str, root: Any) -> Iterator[str]:
    """Commands and options of a line that isthmus does not have."""
    command, arguments, is_value = root, 0, False
    for word in shlex.split(line, comments=True)[1:]:
        if word in {"&", "|", ">", "&&", ";"}:
            break
        if is_value:
            is_value = False
        elif word.startswith("--"):
            option, equals, _ = word.partition("=")
            found = [parameter for parameter in command.params if option in parameter.opts]
            if option != "--help" and not found:
                yield f"shows `{line}`, and there is no option {option}"
            is_value = not equals and any(not getattr(each, "is_flag", False) for each in found)
        elif isinstance(command, TyperGroup):
            if word not in command.commands:
                yield f"shows `{line}`, and there is no command {word}"
                return
            command = command.commands[word]
        else:
            arguments += 1
    taken = [each for each in command.params if each.param_type_name == "argument"]
    if all(each.nargs == 1 for each in taken) and arguments > len(taken):
        yield f"shows `{line}`, and {command.name} takes {len(taken)} arguments"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 1
        while (name := anchor if number == 1 else f"{anchor}-{number - 1}") in found:
            number += 1
        found.add(name)
    return found


def link_faults(page: Path, text: str) -> Iterator[str]:
    """Links of a page that lead to no file, or to no heading of one."""
    for target, anchor in LINK.findall(FENCED.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        other = page.parent / target if target else page
        if not other.exists():
            yield f"link to {target}, which does not exist"
        elif anchor and other.suffix == ".md" and anchor not in anchors(other):
            yield f"link to {target}#{anchor}, which is no heading there"


def faults() -> list[str]:
    """What is wrong, one line each."""
    found = citation_faults()
    for name in files("*.py"):
        found += invariant_faults(name, (ROOT / name).read_text(encoding="utf-8"))
    root = typer.main.get_command(create_app())
    for name in files("*.md"):
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        found += [f"{name}: {fault}" for fault in link_faults(page, text)]
        found += [f"{name}: names a folder of some machine: {match[0]}" for match in MACHINE.finditer(text)]
        found += [f"{name}: {fault}" for line in entered(text) for fault in command_faults(line, root)]
        found += [fault for example in EXAMPLE.findall(text) for fault in example_faults(example, name)]
    for page, text in pages().items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            found.append(f"{page.relative_to(ROOT)}: not what the code says; run `make docs`")
    return found


if __name__ == "__main__":
    reported = faults()
    for fault in reported:
        print(fault)
    sys.exit(1 if reported else 0)
