"""Ordinary subscriptions that a task keeps, for applications and for `isthmus verify`.

What it is: the settings `subscriptions` and `audit`, and their reading. What it is not: replication subscriptions
(`isthmus.topology.pattern.part.replication`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from isthmus.topology.check.rule_check import check_action, check_filter
from isthmus.topology.file.document import Document, Place, Values
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.state import RuleState, SubscriptionState

__all__ = [
    "AUDIT",
    "AUDIT_DURATION",
    "AUDIT_TTL_MS",
    "CONSUMERS",
    "FILTER_RULE",
    "SUBSCRIPTION",
    "SUBSCRIPTIONS",
    "SUBSCRIPTION_SPEC",
    "audited",
    "read_subscriptions",
    "read_task_subscriptions",
]

AUDIT = "audit"
"""Name of the subscription that keeps every message for `isthmus verify`, and that no application consumes."""

AUDIT_TTL_MS = 86_400_000
"""How long an audit subscription keeps a message unless the task declares another time."""

FILTER_RULE = "filter"
"""Name of the only rule of a subscription for which the file declares a filter."""

CONSUMERS = "consumers"
"""Name of the one ordinary subscription of a topic that models a queue, unless the task names it."""

SUBSCRIPTION_SPEC = Spec(
    "subscription",
    "An ordinary subscription that the task keeps on its topic in every member, for applications to read.",
    (
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="SQL filter of the subscription's only rule. Without it the subscription gets every message.",
            example="\"carrier = 'UA'\"",
        ),
        Setting(
            name="action",
            kind=Kind.SQL,
            description="SQL action of the same rule; needs a filter.",
            example="\"SET priority = 'high'\"",
        ),
        Setting(
            name="sessions",
            kind=Kind.BOOLEAN,
            description="Whether the subscription requires sessions; fixed when it is created. Without it: no, and an existing one is not "
            "changed.",
            example="true",
        ),
    ),
)

SUBSCRIPTION = Setting(
    name="subscription",
    kind=Kind.SUBSCRIPTION,
    default=CONSUMERS,
    description="With `queue`: name of the one ordinary subscription, which consumers read.",
    example=CONSUMERS,
)

SUBSCRIPTIONS = Setting(
    name="subscriptions",
    kind=Kind.SUBSCRIPTIONS,
    description="With `topic`: ordinary subscriptions to keep in every member, as a list of names or as a mapping "
    "of names to `filter` and `action`. Other existing subscriptions are not changed.",
    example="[boards, audit]",
)

AUDIT_DURATION = Setting(
    name="audit",
    kind=Kind.DURATION,
    minimum=60_000,
    maximum=INFINITE_MS,
    may_be_off=True,
    description="Keeps the subscription `audit` at every member, which keeps every message for this time and which no "
    "application consumes: `isthmus verify` reads it; at RabbitMQ with `management` a stream beside the exchange. With `off`, "
    "the subscription `audit` of `subscriptions` keeps its messages "
    "for ever. Without this setting, the subscription `audit` of `subscriptions` keeps them for a day, and a queue has no such subscription.",
    example="1d",
)


def read_subscriptions(node: object, document: Document) -> tuple[SubscriptionState, ...]:
    """The ordinary subscriptions of the setting `subscriptions`; each name once."""
    if node is None:
        return ()
    found: dict[str, SubscriptionState] = {}
    for subscription, place in list(_named(node, document)):
        key = subscription.name.lower()
        if key in found:
            document.fault(place, f"subscription {subscription.name} appears twice", "remove one")
        elif key.startswith("isthmus."):
            document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")
        found.setdefault(key, subscription)
    return tuple(found.values())


def read_task_subscriptions(values: Values, document: Document) -> tuple[SubscriptionState, ...]:
    """The ordinary subscriptions of a task that has `topic` with `subscriptions`, or `queue` with `subscription`."""
    if not values.written("queue"):
        if values.written("subscription"):
            document.fault(
                values.at("subscription"), "subscription needs queue", "write subscriptions: [NAME] for a topic"
            )
        return read_subscriptions(values["subscriptions"], document)
    if values.written("subscriptions"):
        document.fault(
            values.at("subscriptions"),
            "a queue has exactly one subscription",
            "write subscription: NAME, or topic: instead of queue:",
        )
    if values["subscription"].lower() == AUDIT:
        document.fault(
            values.at("subscription"),
            f"the name {AUDIT} is reserved for the subscription that only isthmus verify reads",
            f"write subscription: {CONSUMERS}",
        )
    requires_session = True if values["ordering"] == "session" else None
    return (SubscriptionState(name=values["subscription"], requires_session=requires_session),)


def audited(
    values: Values, subscriptions: tuple[SubscriptionState, ...], document: Document
) -> tuple[tuple[SubscriptionState, ...], int | None]:
    """The subscriptions with the audit subscription that the task wants, and how long that keeps a message."""
    declared = any(each.name.lower() == AUDIT for each in subscriptions)
    if not declared and not values["audit"]:
        return subscriptions, None
    written = values["audit"] is not None
    audit_ms: int = values["audit"] if written else AUDIT_TTL_MS
    ttl_ms = audit_ms or INFINITE_MS
    if ttl_ms >= INFINITE_MS:
        document.warn(
            values.at("audit"),
            f"the subscription {AUDIT} keeps its messages for ever: unless they are consumed it fills the topic, "
            "which then refuses messages",
            "write audit: 1d",
        )

    def kept(each: SubscriptionState) -> SubscriptionState:
        # An existing one may belong to an application, which relies on its settings.
        return replace(each, default_ttl_ms=ttl_ms) if written else replace(each, initial_ttl_ms=ttl_ms)

    all_of_them = subscriptions if declared else (*subscriptions, SubscriptionState(name=AUDIT))
    return tuple(kept(each) if each.name.lower() == AUDIT else each for each in all_of_them), audit_ms


def _named(node: object, document: Document) -> Iterator[tuple[SubscriptionState, Place]]:
    setting = Setting(name="subscriptions", kind=Kind.SUBSCRIPTION, description="", example="[boards, audit]")
    items = document.items(node, "subscriptions", setting.example)
    for key, value in items:
        try:
            name = setting.parse(document.scalar(setting, key))
        except SettingError as wrong:
            document.fault(document.place(key), wrong.message, wrong.hint)
            continue
        rules: tuple[RuleState, ...] | None = None
        requires_session: bool | None = None
        if value is not None and not document.is_empty(value):
            values = document.settings(value, SUBSCRIPTION_SPEC, f"subscription {name}")
            rules, requires_session = _rules(values, document), values["sessions"]
        yield SubscriptionState(name=name, rules=rules, requires_session=requires_session), document.place(key)


def _rules(values: Values, document: Document) -> tuple[RuleState, ...] | None:
    if values["filter"]:
        check_filter(values["filter"], values.at("filter"), document)
    if values["action"]:
        check_action(values["action"], values.at("action"), document)
        if not values.written("filter"):
            document.fault(values.at("action"), "an action needs a filter", 'write filter: "1 = 1" for all messages')
    return (RuleState(FILTER_RULE, values["filter"], values["action"] or ""),) if values["filter"] else None
