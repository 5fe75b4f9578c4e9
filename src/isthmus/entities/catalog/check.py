"""The checks of a description that do not depend on other entities.

What it is: ranges, tiers, names and texts; a description is changed only where the service changes it, too. What it is not: checks
against other entities, such as targets of forwarding (`isthmus.entities.administration`).
Spec: docs/explanation/protocol.md, Administration, Rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.catalog.catalog import check_name
from isthmus.entities.catalog.description import (
    INFINITE_MS,
    CorrelationFilter,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.topic.selection import compile_rule
from isthmus.errors import InvalidArgumentError, QuotaExceededError

__all__ = ["check_filters", "check_rule", "check_settings", "check_tier"]

# The limit of the service's largest tier.
_LARGEST_MESSAGE_KILOBYTES = 102_400


def check_tier(description: Description, limits: Limits) -> None:
    """Refuse settings that the tier lacks, and cap the time to live where it is not set.

    Raises:
        InvalidArgumentError: one is set.
    """
    tier = limits.tier
    if tier is None or isinstance(description, RuleDescription):
        return
    unset = type(description)()
    for setting in tier.lacks:
        attribute = setting if hasattr(description, setting) else f"{setting}_ms"
        value = getattr(description, attribute, None)
        if not value or value == getattr(unset, attribute):
            continue
        if setting == "max_message_size_in_kilobytes" and value * 1024 <= limits.max_message_size_bytes:
            continue  # clients send back the values that they read
        spelt = "".join(word.capitalize() for word in setting.split("_"))
        kind = type(description).__name__.removesuffix("Description")
        raise InvalidArgumentError(
            f"The property '{spelt}' can't be set on a {kind} because the namespace is using the '{tier.title}' tier."
        )
    most = tier.max_time_to_live_ms
    if most is not None and description.default_message_time_to_live_ms == INFINITE_MS:
        description.default_message_time_to_live_ms = most
    if most is not None:
        _check_range("DefaultMessageTimeToLive (ms)", description.default_message_time_to_live_ms, 1000, most)


def check_settings(description: Description, limits: Limits) -> None:
    """Refuse settings that are out of range.

    Raises:
        InvalidArgumentError: one is.
    """
    if isinstance(description, RuleDescription):
        return
    if not isinstance(description, TopicDescription):
        low, high = limits.min_lock_duration_ms, limits.max_lock_duration_ms
        _check_range("LockDuration (ms)", description.lock_duration_ms, low, high)
        _check_range("MaxDeliveryCount", description.max_delivery_count, 1, limits.max_delivery_count)
    if not isinstance(description, SubscriptionDescription):
        window_ms = description.duplicate_detection_history_time_window_ms
        low, high = limits.min_duplicate_window_ms, limits.max_duplicate_window_ms
        _check_range("DuplicateDetectionHistoryTimeWindow (ms)", window_ms, low, high)
        _check_range("MaxSizeInMegabytes", description.max_size_in_megabytes, 1, limits.max_entity_size_megabytes)
        if (kilobytes := description.max_message_size_in_kilobytes) is not None:
            _check_range("MaxMessageSizeInKilobytes", kilobytes, 1, _LARGEST_MESSAGE_KILOBYTES)
    _check_range("DefaultMessageTimeToLive (ms)", description.default_message_time_to_live_ms, 1, INFINITE_MS)
    low = limits.min_auto_delete_on_idle_ms
    _check_range("AutoDeleteOnIdle (ms)", description.auto_delete_on_idle_ms, low, INFINITE_MS)
    metadata, most = len(description.user_metadata or ""), limits.max_user_metadata_characters
    _check_range("The length of UserMetadata", metadata, 0, most)
    _check_status(description)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; {low} to {high} is allowed.")


def _check_status(description: QueueDescription | TopicDescription | SubscriptionDescription) -> None:
    refused = {TopicDescription: EntityStatus.RECEIVE_DISABLED, SubscriptionDescription: EntityStatus.SEND_DISABLED}
    if description.status == refused.get(type(description)):
        kind = type(description).__name__.removesuffix("Description").lower()
        raise InvalidArgumentError(f"Status is {description.status}, which a {kind} cannot have.")


def check_rule(rule: RuleDescription, limits: Limits) -> None:
    """Refuse a rule whose name or expressions are invalid or too long.

    Raises:
        InvalidArgumentError: they are.
    """
    check_name("rule", rule.name, limits.max_subscription_name_characters)
    most = limits.max_rule_expression_characters
    for what, part in (("filter", rule.filter), ("action", rule.action)):
        if isinstance(part, SqlFilter | SqlAction) and len(part.expression) > most:
            raise InvalidArgumentError(f"The {what} has {len(part.expression)} characters; {most} are allowed.")
    compile_rule(rule)


def check_filters(topic: str, rules: Sequence[RuleDescription], added: RuleDescription, limits: Limits) -> None:
    """Refuse one more filter than the limit for all subscriptions of a topic together.

    Args:
        topic: its name.
        rules: those of all its subscriptions.
        added: one more.
        limits: of the namespace.

    Raises:
        QuotaExceededError: the limit is reached.
    """
    for kind, most in (
        (SqlFilter, limits.max_sql_filters_per_topic),
        (CorrelationFilter, limits.max_correlation_filters_per_topic),
    ):
        if not isinstance(added.filter, kind) or len(rules) < most:
            continue
        if sum(isinstance(rule.filter, kind) for rule in rules) >= most:
            raise QuotaExceededError(f"'{topic}' has {most} {kind.__name__}s, as many as it may have.")
