"""Whether locks of a folder's files apply across machines.

What it is: the mount table's entry of the file system of a folder. What it is not: a trial; locks that apply on one
machine only are granted like any others.
Spec: nfs(5), `local_lock` and `nolock`; mount.cifs(8), `nobrl`; Lustre manual, `localflock` and `noflock`; proc(5),
`/proc/PID/mountinfo`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["lock_fault", "mount_table"]

# By prefix of a file system's type: options with which flock applies on this machine only, or not at all.
_LOCAL = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "cifs": ("nobrl",),
    "smb3": ("nobrl",),
    "lustre": ("localflock", "noflock"),
}


def mount_table() -> str:
    """The mounts visible to this process; empty where the system does not list them."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def lock_fault(folder: Path, mounts: str) -> str:
    """Why locks of files in a folder do not apply on other machines; empty where no reason is known.

    Args:
        folder: absolute, without symbolic links.
        mounts: the result of `mount_table`.
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        fields, rest = before.split(" "), behind.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        mount = Path(_plain(fields[4]))
        if len(mount.parts) < longest or not folder.is_relative_to(mount):
            continue
        longest = len(mount.parts)  # of two mounts at one path, the later one is on top
        options = {*fields[5].split(","), *rest[2].split(",")}
        local = next((names for kind, names in _LOCAL.items() if rest[0].startswith(kind)), ())
        bad = next((name for name in local if name in options), "")
        found = f"'{mount}' is mounted as {rest[0]} with {bad}" if bad else ""
    return found


def _plain(text: str) -> str:
    """A field of the table, in which spaces and the like are octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
