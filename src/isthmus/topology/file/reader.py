"""The reader of the federation file.

What it is: the top of the federation file (version, namespaces, tasks, spark, pairs) read into the model, each part by its spec, with
every fault collected. What it is not: checks across parts (`isthmus.topology.linter`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.file.document import Document, Place, Values, compose, suggest
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.identity import IDENTITY, IDENTITY_SETTINGS, IdentityReference, identity_faults
from isthmus.topology.kind import KINDS, SERVICE_BUS, NamespaceKind
from isthmus.topology.ledger import read_ledger
from isthmus.topology.model import Federation, NamespaceRef, Task
from isthmus.topology.pair.declaration import read_pairs
from isthmus.topology.pattern import AS_STEPS, PATTERNS, by_step
from isthmus.topology.rate import read_rate
from isthmus.topology.spark import read_spark
from isthmus.topology.step.divert import diverts_of
from isthmus.topology.step.reader import read_steps

__all__ = ["FILE_SPEC", "KIND_SETTING", "NAMESPACE_SPEC", "PATTERN_SETTING", "read_model"]

VERSION = 1

FILE_SPEC = Spec(
    "federation file",
    "Namespaces and the replication tasks between them. Keys that begin with `x-` are ignored and may contain YAML anchors.",
    (
        Setting(
            name="isthmus",
            kind=Kind.INTEGER,
            required=True,
            description="Version of the file's format.",
            minimum=1,
            example=str(VERSION),
        ),
        Setting(
            name="namespaces",
            kind=Kind.MAPPING,
            required=True,
            description="Alias → namespace. The alias becomes part of every message's identity and of subscription names: "
            "keep it short, and do not change it.",
            example="{ewr: {connection: env:EWR_CONNECTION}}",
        ),
        Setting(
            name="tasks",
            kind=Kind.MAPPING,
            description="Name → task. Only a file with `pairs` may omit it.",
            example="{flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}}",
        ),
        Setting(
            name="spark",
            kind=Kind.MAPPING,
            description="Where Spark runs, and its settings; by default on this machine.",
            example="{master: spark://spark.example.com:7077}",
        ),
        Setting(
            name="pairs",
            kind=Kind.MAPPING,
            description="Name → pair of namespaces, which `isthmus pair` keeps synchronised.",
            example="{contoso: {primary: ewr, secondary: jfk}}",
        ),
    ),
)


NAMESPACE_SPEC = Spec(
    "namespace",
    "Address and credential of a namespace: `connection` alone, or `host` with `identity`.",
    (
        Setting(
            name="connection",
            kind=Kind.REFERENCE,
            secret=True,
            description="Reference to the connection string, which needs the Manage right for `apply` and Listen and Send "
            "for `run`: `env:NAME`, `file:/path` (the whole file), `file:/path#key` (a JSON object or KEY=value lines) or "
            "`keyvault:vault/name`. A relative path is relative to the federation file's folder.",
            example="env:EWR_CONNECTION",
        ),
        Setting(
            name="host",
            kind=Kind.HOST,
            description="Fully qualified name of the namespace, opened by `identity`.",
            example="contoso-ewr.servicebus.windows.net",
        ),
        IDENTITY,
        *IDENTITY_SETTINGS,
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            description="PEM file of the authority that signed the namespace's TLS certificate, if the system does not "
            "trust it. Default: the file in the environment variable ISTHMUS_CA_FILE, then the system's authorities.",
            example="ewr/ca.pem",
        ),
        Setting(
            name="transport_type",
            kind=Kind.CHOICE,
            choices=("amqp", "websockets"),
            default="amqp",
            description="The transport: `amqp` over TCP, or `websockets` over port 443, for networks that allow "
            "nothing else; through the proxy in the environment variable HTTPS_PROXY if it is set.",
            example="websockets",
        ),
        Setting(
            name="kind",
            kind=Kind.CHOICE,
            choices=tuple(KINDS),
            default=SERVICE_BUS.name,
            description="The system. Each kind except `servicebus` has its own settings.",
            example=SERVICE_BUS.name,
        ),
    ),
)

_IDENTITY = (IDENTITY.name, *(each.name for each in IDENTITY_SETTINGS))

KIND_SETTING = next(each for each in NAMESPACE_SPEC.settings if each.name == "kind")
ALIAS_SETTING = Setting(name="alias", kind=Kind.ALIAS, description="Alias of a namespace.", example="ewr")
TASK_NAME_SETTING = Setting(name="task", kind=Kind.ALIAS, description="Name of a task.", example="flights")

PATTERN_SETTING = Setting(
    name="pattern",
    kind=Kind.CHOICE,
    choices=tuple(PATTERNS),
    required=True,
    description="What the task does.",
    example="all-active",
)


def read_model(text: str, file: str) -> tuple[Document, Federation]:
    """Read a federation file.

    Returns:
        The document with the faults so far, and the parts that could be read.
    """
    document, root = compose(text, file)
    if root is None:
        return document, Federation({}, {}, file)
    extensions = frozenset(name for name in document.pairs(root, "the file") if name.startswith("x-"))
    top = document.settings(root, FILE_SPEC, "the file", ignore=extensions)
    if top["isthmus"] not in (None, VERSION):
        document.fault(
            top.at("isthmus"), f"this isthmus reads version {VERSION} of the file", f"write isthmus: {VERSION}"
        )
    namespaces, declared = _namespaces(top["namespaces"], document)
    if isinstance(root, yaml.MappingNode) and not top.written("tasks") and not top.written("pairs"):
        document.fault(top.place, "the federation file has no tasks", f"write tasks: {FILE_SPEC.settings[2].example}")
    tasks = _tasks(top["tasks"], namespaces, declared, document) if top.written("tasks") else {}
    kinds = {alias: each.kind for alias, each in namespaces.items()}
    pairs = read_pairs(top["pairs"], kinds, declared, document)
    return document, Federation(namespaces, tasks, file, spark=read_spark(top["spark"], document), pairs=pairs)


def _namespaces(node: Any, document: Document) -> tuple[dict[str, NamespaceRef], set[str]]:
    found: dict[str, NamespaceRef] = {}
    declared: set[str] = set()
    for alias, (key, value) in document.pairs(node, "namespaces").items():
        declared.add(alias)
        try:
            ALIAS_SETTING.parse(alias)
        except SettingError as wrong:
            document.fault(document.place(key), wrong.message, wrong.hint)
            continue
        kind = _kind(value)
        if kind is None or kind is SERVICE_BUS:
            values = document.settings(value, NAMESPACE_SPEC, f"namespace {alias}")
            found[alias] = _namespace(alias, values, document.place(key), document)
        else:
            values = document.settings(value, kind.spec(KIND_SETTING), f"namespace {alias}")
            found[alias] = _other_namespace(alias, kind, values, document.place(key), document)
    if document.is_bare(node):
        document.fault(document.place(node), "no namespace is declared", "write ewr: {connection: env:EWR_CONNECTION}")
    return found, declared


def _kind(node: Any) -> NamespaceKind | None:
    """The kind of a namespace; None if it is missing or invalid, which is reported when its settings are read."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if getattr(key, "value", "") == KIND_SETTING.name:
            try:
                return KINDS[KIND_SETTING.parse(Document.scalar(KIND_SETTING, value))]
            except SettingError:
                return None
    return None


def _other_namespace(alias: str, kind: NamespaceKind, values: Values, place: Place, document: Document) -> NamespaceRef:
    """A namespace of a kind with its own settings."""
    if not values.faulty:
        for name, message, hint in kind.faults(values.values, lambda name, value: f"{name}: {value}"):
            document.fault(values.at(name), f"namespace {alias}: {message}", hint)
    written = [each.name for each in kind.settings if values.written(each.name) and each.name not in values.faulty]
    settings = tuple((name, str(values[name])) for name in written)
    return NamespaceRef(alias=alias, kind=kind.name, settings=settings, place=place)


def _namespace(alias: str, values: Values, place: Place, document: Document) -> NamespaceRef:
    if values.written("connection") and values.written("host"):
        document.fault(values.at("host"), f"namespace {alias} has both connection and host", "remove one")
    elif values.written("connection") and (written := [each for each in _IDENTITY if values.written(each)]):
        document.fault(
            values.at(written[0]),
            f"namespace {alias}: {written[0]} needs host",
            "write host: instead of connection:",
        )
    elif not values.written("connection") and not values.written("host"):
        document.fault(
            place,
            f"namespace {alias} has neither connection nor host",
            f"write connection: env:{alias.upper().replace('-', '_')}_CONNECTION",
        )
    identity = IdentityReference.of(values.values)
    if not values.written("connection") and not values.faulty:
        for name, message, hint in identity_faults(identity, lambda name, value: f"{name}: {value}"):
            document.fault(values.at(name), f"namespace {alias}: {message}", hint)
    return NamespaceRef(
        alias=alias,
        connection=values["connection"],
        host=values["host"] or "",
        identity="" if values["connection"] else str(identity),
        ca_file=values["ca_file"] or "",
        transport_type=values["transport_type"],
        kind=values["kind"],
        place=place,
    )


def _tasks(node: Any, namespaces: dict[str, NamespaceRef], declared: set[str], document: Document) -> dict[str, Task]:
    found: dict[str, Task] = {}
    pairs = document.pairs(node, "tasks")
    for name, (key, value) in pairs.items():
        try:
            TASK_NAME_SETTING.parse(name)
        except SettingError as wrong:
            document.fault(document.place(key), wrong.message, wrong.hint)
            continue
        task = _task(name, document.place(key), value, declared, document)
        if task is not None:
            diverts = diverts_of(task.steps, {alias: each.kind for alias, each in namespaces.items()})
            found[name] = replace(PATTERNS[task.pattern].named(task, namespaces), diverts=diverts)
    if document.is_bare(node):
        document.fault(document.place(node), "no task is declared", f"write {FILE_SPEC.settings[2].example}")
    return found


def _task(name: str, place: Place, node: Any, declared: set[str], document: Document) -> Task | None:
    pairs = document.pairs(node, f"task {name}")
    if "pattern" not in pairs:
        document.fault(place, f"task {name} has no pattern", f"write pattern: {' or '.join(PATTERNS)}")
        return None
    value = pairs["pattern"][1]
    try:
        pattern = PATTERNS[PATTERN_SETTING.parse(document.scalar(PATTERN_SETTING, value))]
    except SettingError as wrong:
        unknown = "unknown" in wrong.message
        written = str(getattr(value, "value", ""))
        if written in AS_STEPS:
            document.fault(document.place(value), *by_step(written))
        else:
            document.fault(
                document.place(value), wrong.message, suggest(written, list(PATTERNS)) if unknown else wrong.hint
            )
        return None
    values = document.settings(node, pattern.spec, f"task {name}", ignore=frozenset({"pattern"}))
    values.place = place
    _check_aliases(values, pattern.spec, declared, document)
    steps = read_steps(values["steps"], document)
    rate = read_rate(values["rate"], document)
    ledger = read_ledger(values["ledger"], document)
    task = pattern.build(name, values, document)
    if task is None:
        return None
    return replace(
        task,
        steps=steps,
        rate=rate,
        canary_ms=values["canary"] or 0,
        ledger=ledger,
        mailbox=bool(values["mailbox"]),
        when_full=values["when_full"] or "alert",
        session_state=values["session_state"] or "none",
        compression=values["compression"] or "none",
        hop_budget=values["hop_budget"] or HOP_BUDGET,
    )


def _check_aliases(values: Values, spec: Spec, declared: set[str], document: Document) -> None:
    """Fault undeclared aliases; an alias with a faulty declaration has a fault at its declaration only."""
    for setting in spec.settings:
        if not values.written(setting.name) or setting.name in values.faulty or not setting.available:
            continue
        if setting.kind in {Kind.ALIAS, Kind.ALIASES}:
            is_one = setting.kind is Kind.ALIAS
            written = [(values[setting.name], values.at(setting.name))] if is_one else values[setting.name]
            for alias, place in written:
                if alias not in declared:
                    document.fault(place, f"no namespace has the alias {alias!r}", suggest(alias, sorted(declared)))
