"""The comparison of a wanted topic, with its subscriptions and rules, with the existing one."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha1

from isthmus.rules import RuleSyntaxError, parse_filter
from isthmus.topology.canary import narrows, taking
from isthmus.topology.check.rule_check import RULE_LIMIT
from isthmus.topology.file.duration import INFINITE_MS, format_ms
from isthmus.topology.pattern.part.subscription import AUDIT, FILTER_RULE
from isthmus.topology.planning.change import Action, Change, differences
from isthmus.topology.planning.finding import OWN, Findings, fitted, settled
from isthmus.topology.state import NamespaceState, RuleState, SubscriptionState, TopicState

__all__ = ["plan_topic"]

_PARTING = ("split", "spillover")
"""Patterns whose subscriptions divide the messages of a topic among them, so that each message must be selected by one of them."""


def plan_topic(findings: Findings, namespace: NamespaceState, topic: TopicState) -> None:
    """Add the changes that make the topic, its subscriptions and their rules."""
    _TopicPlanner(findings, namespace, fitted(topic, namespace.endpoint)).plan()


class _TopicPlanner:
    def __init__(self, findings: Findings, namespace: NamespaceState, topic: TopicState) -> None:
        self._findings = findings
        self._namespace = namespace
        self._alias = namespace.alias
        self._topic = topic
        tasks = findings.federation.tasks.items()
        self._parting = tuple(f"{OWN}{name}.".lower() for name, task in tasks if task.pattern in _PARTING)
        # Final updates of rules that divide messages: after all other changes of the topic.
        self._narrowing: list[Change] = []

    def plan(self) -> None:
        topic, existing = self._topic, self._namespace.topic(self._topic.name)
        if existing is None:
            if self._namespace.queue(topic.name):
                self._findings.fault(
                    self._alias,
                    f"there is a queue with the name of the topic {topic.name}",
                    "write another name, or move the queue's messages and delete it: one queue at many regions is "
                    "modelled as a topic with one subscription",
                )
                return
            bare = replace(topic, subscriptions=())
            change = Change(alias=self._alias, action="create", kind="topic", topic=topic.name, after=bare)
            self._findings.changes.append(change)
            self._findings.note_created_detection(self._alias, f"topic {topic.name}", topic)
        else:
            self._check(existing)
        for name, why in taking(topic, existing):
            self._findings.fault(
                self._alias,
                f"subscription {name} of {topic.name} {why}",
                "write the subscription and its rules in the task's subscriptions, or remove canary from the task",
            )
        for subscription in topic.subscriptions:
            self._subscription(settled(subscription), existing.subscription(subscription.name) if existing else None)
        self._findings.changes += self._narrowing

    def _check(self, existing: TopicState) -> None:
        topic, what = self._topic, f"topic {self._topic.name}"
        if self._findings.check_duplicates(self._alias, what, topic, existing):
            after = replace(topic, subscriptions=(), partitioned=existing.partitioned)
            before = replace(existing, subscriptions=())
            self._findings.changes.append(
                Change(alias=self._alias, action="update", kind="topic", topic=topic.name, after=after, before=before)
            )
        self._findings.check_partitioned(self._alias, what, topic, existing)

    def _change(
        self,
        action: Action,
        subscription: SubscriptionState,
        before: SubscriptionState | None = None,
    ) -> None:
        self._findings.changes.append(
            Change(
                alias=self._alias,
                action=action,
                kind="subscription",
                topic=self._topic.name,
                subscription=subscription.name,
                after=subscription,
                before=before,
            )
        )

    def _subscription(self, subscription: SubscriptionState, existing: SubscriptionState | None) -> None:
        what = f"subscription {subscription.name} of {self._topic.name}"
        self._findings.note_former(self._namespace, what, subscription, existing)
        if existing is None:
            self._change("create", subscription)
            return
        update = Change(
            alias=self._alias,
            action="update",
            kind="subscription",
            topic=self._topic.name,
            subscription=subscription.name,
        )
        existing = self._findings.end_forwarding(self._alias, what, subscription, existing, update)
        self._findings.note_kept(self._alias, what, subscription, existing)
        if not self._findings.check_receiver(self._alias, what, subscription, existing):
            return
        if any(True for _ in differences(existing, subscription)):
            self._change("update", replace(subscription, rules=None), replace(existing, rules=None))
            if not subscription.name.lower().startswith(OWN):
                self._findings.note_forwarding(self._alias, what, subscription, existing)
            self._findings.note_left(self._alias, subscription, existing)
        endless = (existing.default_ttl_ms or 0) >= INFINITE_MS
        if subscription.initial_ttl_ms is not None and subscription.initial_ttl_ms < INFINITE_MS and endless:
            self._findings.notes.append(
                f"{what} at {self._alias} keeps its messages for ever and is not changed: "
                f"it fills the topic unless it is consumed; write audit: {format_ms(subscription.initial_ttl_ms)} in "
                "the task to change it"
            )
        if subscription.rules is not None:
            self._rules(subscription, existing)
        elif subscription.name == self._verified() and all(narrows(rule) for rule in existing.rules or ()):
            is_audit = subscription.name.lower() == AUDIT
            correction = (
                "delete its rules but one that selects everything" if is_audit else "write audit: 1d in the task"
            )
            self._findings.notes.append(
                f"{what} at {self._alias} has rules that the file does not declare, and does not get every message: verify "
                "misses the messages that it "
                f"does not get; {correction}"
            )
        else:
            self._note_former_filter(what, existing)

    def _note_former_filter(self, what: str, existing: SubscriptionState) -> None:
        """Note a former filter of the file for a subscription: since then it is a rule of an application."""
        rule = existing.rule(FILTER_RULE)
        if rule is not None and all(map(narrows, existing.rules or ())):
            self._findings.notes.append(
                f"{what} at {self._alias} keeps its rule {rule.name} ({rule.filter}), which the file does not declare, and "
                "gets only the messages that it selects; "
                'write filter: "1 = 1" for it to get every message'
            )

    def _verified(self) -> str:
        """The subscription that `verify` reads by default; empty: none."""
        whole = [
            each.name
            for each in self._topic.subscriptions
            # A subscription that forwards is not read, and a task that empties a subscription, or spills its dead letters, is not verified by it.
            if each.rules is None and each.forward_to is None and each.forward_dead_letters_to is None
        ]
        return next((name for name in whole if name.lower() == AUDIT), next(iter(whole), ""))

    def _rules(self, subscription: SubscriptionState, existing: SubscriptionState) -> None:
        def made(action: Action, after: RuleState | None, before: RuleState | None, why: str = "") -> Change:
            return Change(
                alias=self._alias,
                action=action,
                kind="rule",
                topic=self._topic.name,
                subscription=subscription.name,
                after=after,
                before=before,
                why=why,
            )

        def change(action: Action, after: RuleState | None, before: RuleState | None, why: str = "") -> None:
            self._findings.changes.append(made(action, after, before, why))

        is_parting = subscription.name.lower().startswith(self._parting)
        rules = subscription.rules or ()
        foreign = [rule for rule in existing.rules or () if subscription.rule(rule.name) is None]
        for rule in rules:
            present = existing.rule(rule.name)
            if present is None:
                for other in foreign:
                    if not other.selects_as(rule):
                        change("update", replace(rule, name=other.name), other, "so that no message is lost meanwhile")
                change("create", rule, None)
            elif not present.selects_as(rule) and is_parting:
                wide = _either(present, rule)
                why = "so that no message is unselected meanwhile"
                beside = None
                if wide is None:
                    if not any(each.selects_as(rule) for each in foreign):
                        beside = replace(rule, name=_beside(rule))
                        change("create", beside, None, why)
                elif not wide.selects_as(present):
                    change("update", wide, present, why)
                self._narrowing.append(made("update", rule, wide or present))
                if beside is not None:
                    self._narrowing.append(made("delete", None, beside, "selects beside the task's rule"))
            elif not present.selects_as(rule):
                change("update", rule, present)
        for other in foreign:
            replaced = not any(existing.rule(rule.name) for rule in rules) and rules
            replaced_rule = replace(rules[0], name=other.name) if replaced else other
            # Of rules that divide messages it may be the only one that selects some, until all are narrowed.
            (self._narrowing if is_parting else self._findings.changes).append(
                made("delete", None, replaced_rule, "selects beside the task's rule")
            )


def _either(present: RuleState, wanted: RuleState) -> RuleState | None:
    """A rule that selects the union of both; None if it cannot be written, e.g. for a correlation filter, or is too long."""
    if present.filter.endswith(f" OR ({wanted.filter})"):
        return replace(wanted, filter=present.filter)
    both = f"({present.filter}) OR ({wanted.filter})"
    try:
        parse_filter(both)
    except RuleSyntaxError:
        return None
    return replace(wanted, filter=both) if len(both) <= RULE_LIMIT else None


def _beside(rule: RuleState) -> str:
    """Name of the additional rule beside one of a task while that is changed."""
    text = f"{rule.filter}\0{rule.action}"
    return f"isthmus-{sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"
