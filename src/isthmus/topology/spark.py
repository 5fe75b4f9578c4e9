"""The settings of Spark in the federation file, under `spark:`.

What it is: the declaration of its settings, the values read from it, and how many task slots a run needs. What it is not: the session
(`isthmus.replication.spark_session`).

Masters: Apache Spark, "Submitting Applications", section Master URLs; settings: Apache Spark, "Spark Configuration".

Invariants:
    I1. A setting of Spark that would break guarantees of isthmus is refused by name, with the reason.
    I2. A setting whose name indicates a secret is refused: the file contains references only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.topology.file.document import Document, Place
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec

__all__ = [
    "CONTROL_SPEC",
    "SPARK_SPEC",
    "ControlAddress",
    "SparkSettings",
    "control_warning",
    "parse_master",
    "read_spark",
    "slots_needed",
    "slots_warning",
]

# The default number of readers of a query, each a task: one keeps the order of every route, and a second one shares the work of routes
# without order.
SLOTS_ORDERED = 1
SLOTS_UNORDERED = 2
# One for the driver's small jobs, one so that a restarted query does not wait for the previous one.
SPARE_SLOTS = 2

SPARK_SPEC = Spec(
    "spark",
    "Where Spark runs. Default: on this machine, with as many task slots as the run needs.",
    (
        Setting(
            name="master",
            kind=Kind.TEXT,
            description="Spark's master: `local[N]` for N task slots on this machine, `spark://host:port`, `yarn` or "
            "`k8s://https://host:port`. `isthmus run --master` overrides it. See "
            "[run on a cluster](../how-to/run-on-a-cluster.md).",
            example="spark://spark.example.com:7077",
        ),
        Setting(
            name="slots",
            kind=Kind.INTEGER,
            minimum=1,
            maximum=64,
            description="Concurrent readers of a query; each is a Spark task, and on a cluster they are distributed over the "
            "executors. A route with "
            "`ordering: none` is carried by all of them, any other by one, and routes move between them as their rates change. Default: 1, "
            "and 2 if a route has `ordering: none`.",
            example="4",
        ),
        Setting(
            name="checkpoints",
            kind=Kind.TEXT,
            description="Location of the checkpoints of the run's queries: a URI of a file system that Spark can write, with a folder for "
            "this federation only. Default: a folder of `--state`.",
            example="hdfs://namenode:8020/isthmus/flights",
        ),
        Setting(
            name="settings",
            kind=Kind.MAPPING,
            description="Settings of Spark by their full names. Those that isthmus needs itself are refused, and so are those "
            "that contain secrets.",
            example="{spark.executor.memory: 2g}",
        ),
        Setting(
            name="control",
            kind=Kind.MAPPING,
            description="The address at which readers on other machines connect to `isthmus run`.",
            example="{host: 10.0.0.5, port: 7420}",
        ),
    ),
)

CONTROL_SPEC = Spec(
    "control",
    "The control port of `isthmus run`. Default: a free port of 127.0.0.1.",
    (
        Setting(
            name="host",
            kind=Kind.TEXT,
            default="127.0.0.1",
            description="The address that the port is bound to. It is also the driver's address for Spark (`spark.driver.host`, "
            "`spark.driver.bindAddress`), unless `settings` contain them.",
            example="10.0.0.5",
        ),
        Setting(
            name="port",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            maximum=65535,
            description="The port; 0: any free port.",
            example="7420",
        ),
        Setting(
            name="advertised",
            kind=Kind.TEXT,
            description="The host that executors connect to, if it is not `host`; required with `host: 0.0.0.0`.",
            example="isthmus.example.com",
        ),
    ),
)

_MASTER_SETTING = SPARK_SPEC.settings[0]
_VALUE_SETTING = Setting(name="settings", kind=Kind.TEXT, description="", example="{spark.executor.memory: 2g}")
_LOCAL = re.compile(r"local(?:\[(?P<cores>[1-9]\d{0,5}|\*)\])?")
_REMOTE = re.compile(r"spark://[^\s/,]+:\d{1,5}(,[^\s/,]+:\d{1,5})*|yarn|k8s://\S+|local-cluster\[\d+,\s*\d+,\s*\d+\]")
_LOOPBACK = re.compile(r"127(?:\.\d{1,3}){3}|localhost|::1")
_HERE = re.compile(rf"spark://\[?({_LOOPBACK.pattern})\]?:\d+")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s?#]*/[^\s?#]+")
_NAME = re.compile(r"spark\.[A-Za-z0-9_.-]+")
# As `spark.redaction.regex` of the session, which also matches names that only mention such things.
_SECRET = re.compile(r"(?i)(secret|password|token|credential|access[.]?key)$")
_WILDCARDS = ("0.0.0.0", "::")

_REDACTED = "it keeps keys out of plans, logs and Spark's web page"
REFUSED: Mapping[str, str] = {
    "spark.master": "use the setting `master`",
    "spark.speculation": "a second copy of a running task would consume from the queue of the first",
    "spark.task.maxFailures": "a failed lease has to fail its query immediately, so that the driver records the failure and "
    "starts the next lease",
    "spark.task.cpus": "task slots are counted as one core each",
    "spark.submit.deployMode": "the driver is the process of isthmus run",
    "spark.python.daemon.module": "isthmus has its own, which imports everything once for all workers",
    "spark.python.worker.module": "isthmus has its own daemon for workers",
    "spark.redaction.regex": _REDACTED,
    "spark.redaction.string.regex": _REDACTED,
    "spark.sql.redaction.options.regex": _REDACTED,
    "spark.sql.redaction.string.regex": _REDACTED,
}


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Address of the control port, and the host that executors connect to.

    Attributes:
        host: the address to listen on.
        port: 0: any free port.
        advertised: the host that executors connect to; empty: `host`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""

    @property
    def reached_as(self) -> str:
        """The host that executors connect to."""
        return self.advertised or self.host


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of Spark.

    Attributes:
        master: URL of Spark's master; empty: this machine, with the slots that the run needs.
        slots: concurrent readers of a query; 0: as its routes need.
        checkpoints: URI of the checkpoints; empty: in the state folder.
        settings: settings of Spark, by name.
        control: control port of the run.
        place: its position in the file.
    """

    master: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    control: ControlAddress = field(default=ControlAddress())
    slots: int = 0
    checkpoints: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether executors are separate processes, which may run on other machines."""
        return bool(self.master) and not _LOCAL.fullmatch(self.master)

    def query_slots(self, *, has_unordered: bool) -> int:
        """The number of concurrent readers of a query.

        Args:
            has_unordered: whether the run has a route that competing readers may share.
        """
        return self.slots or (SLOTS_UNORDERED if has_unordered else SLOTS_ORDERED)

    def at(self, master: str) -> SparkSettings:
        """The same with another master; empty: unchanged."""
        return replace(self, master=master or self.master)

    def options(self) -> dict[str, str]:
        """The options to start Spark with, besides those of every run."""
        options = {}
        if self.control != ControlAddress():
            options = {"spark.driver.host": self.control.reached_as, "spark.driver.bindAddress": self.control.host}
        options |= self.settings
        return options | ({"spark.master": self.master} if self.master else {})


def slots_needed(routes: int, queries: int = 1, query_slots: int = SLOTS_ORDERED, *, has_tables: bool = False) -> int:
    """The number of task slots that a run needs: those of each query, one for each route that may get a separate query, and one for the batches
    that are written to tables.
    """
    return queries * query_slots + routes + SPARE_SLOTS + has_tables


def slots_warning(spark: SparkSettings, needed: int) -> tuple[str, str] | None:
    """The warning and the hint if the cores are known and do not suffice; None otherwise."""
    known = []
    match = _LOCAL.fullmatch(spark.master)
    if match and match["cores"] != "*":
        known.append((f"master {spark.master}", int(match["cores"] or 1), f"local[{needed}]"))
    cores_max = spark.settings.get("spark.cores.max", "")
    if cores_max.isdecimal() and not match:
        known.append(("spark.cores.max", int(cores_max), str(needed)))
    for what, cores, instead in known:
        if cores < needed:
            gives = f"{what} gives {cores} task slot{'s' * (cores != 1)} and the run needs {needed}"
            return f"{gives}: a query that waits for a slot moves nothing", f"write {instead}"
    return None


def control_warning(spark: SparkSettings) -> tuple[str, str] | None:
    """The warning and the hint if executors are on other machines and the control port is on loopback; None otherwise."""
    is_remote = bool(spark.master) and not spark.master.startswith("local") and not _HERE.match(spark.master)
    if not is_remote or not _LOOPBACK.fullmatch(spark.control.reached_as):
        return None
    return (
        f"executors of {spark.master} on other machines cannot reach the control port at {spark.control.reached_as}",
        "write control: {host: …} with an address of this machine that they can reach",
    )


def parse_master(text: str) -> str:
    """A valid master.

    Raises:
        SettingError: the text is no master that isthmus can use.
    """
    master = text.strip()
    if master.startswith("local[") and "," in master:
        raise SettingError("master: isthmus sets how often a task may fail", "write local[N] without a second number")
    if not _LOCAL.fullmatch(master) and not _REMOTE.fullmatch(master):
        raise SettingError(
            "master is no master URL of Spark", "write local[N], spark://host:port, yarn or k8s://https://host:port"
        )
    return master


def read_spark(node: Any, document: Document) -> SparkSettings:
    """The settings under `spark:`; faults go to the document."""
    if node is None:
        return SparkSettings()
    values = document.settings(node, SPARK_SPEC, "spark")
    master = values["master"] or ""
    if master:
        try:
            master = parse_master(master)
        except SettingError as wrong:
            document.fault(values.at("master"), wrong.message, wrong.hint)
            master = ""
    settings = _settings(values["settings"], document)
    control = _control(values["control"], document)
    checkpoints = (values["checkpoints"] or "").strip()
    if checkpoints and not _URI.fullmatch(checkpoints):
        hint = "write a scheme and a path, e.g. hdfs://namenode:8020/isthmus/flights"
        document.fault(values.at("checkpoints"), "checkpoints is no URI", hint)
    return SparkSettings(master, settings, control, values["slots"] or 0, checkpoints, values.at("master"))


def _control(node: Any, document: Document) -> ControlAddress:
    if node is None:
        return ControlAddress()
    values = document.settings(node, CONTROL_SPEC, "control")
    host, advertised = (values["host"] or "").strip(), (values["advertised"] or "").strip()
    if host in _WILDCARDS and not advertised and "advertised" not in values.faulty:
        document.fault(
            values.at("host"),
            f"no executor can connect to {host}",
            "write advertised: with the host name of this machine as executors see it",
        )
    return ControlAddress(host, values["port"] or 0, advertised)


def _settings(node: Any, document: Document) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, (key, value) in document.pairs(node, "settings").items():
        place = document.place(key)
        if name in REFUSED:
            document.fault(place, f"{name} cannot be set: {REFUSED[name]}", "remove it")
        elif not _NAME.fullmatch(name):
            document.fault(place, f"{name!r} is no setting of Spark", "write its full name, e.g. spark.executor.memory")
        elif _SECRET.search(name):
            document.fault(
                place,
                f"{name} contains a secret",
                "write it into spark-defaults.conf of the folder that the environment variable SPARK_CONF_DIR names",
            )
        else:
            try:
                found[name] = _VALUE_SETTING.parse(document.scalar(_VALUE_SETTING, value))
            except SettingError as wrong:
                document.fault(document.place(value), wrong.message.replace("settings", name, 1), wrong.hint)
    return found
