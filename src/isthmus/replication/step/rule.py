"""The steps `filter` and `set`: the rules language of Service Bus, as the broker's own closures.

On rows with columns for a step `python` or `sql`, `filter` is a Spark column (`frame_filter`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.bridge.delivery_event import Disposition
from isthmus.replication.step.base import STEP_FAILED, MessageStep, Settings, disposition_of, failure_of
from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import parse_action, parse_filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FILTERED", "frame_filter", "open_filter", "open_set"]

FILTERED = "Filtered"


def open_filter(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.rule.FilterStep`."""
    matches = parse_filter(settings["where"]).matches
    filtered = disposition_of(failure_of(settings), FILTERED, f"the filter does not select it: {settings['where']}")

    def step(message: StepMessage) -> Disposition | None:
        return None if matches(message) is True else filtered

    return step


def open_set(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.rule.SetStep`."""
    changes = parse_action(settings["action"]).apply

    def step(message: StepMessage) -> Disposition | None:
        message.apply(changes(message))
        return None

    return step


def frame_filter(rows: DataFrame, settings: Settings) -> DataFrame:
    """The same over columns: rows that are not selected get a disposition; flush rows and rows with a disposition are unchanged."""
    from pyspark.sql import functions as F

    from isthmus.replication.rule_cell import RuleColumns
    from isthmus.replication.rule_column import filter_column

    verdict, failed = filter_column(parse_filter(settings["where"]), RuleColumns.of(rows))
    kind = disposition_of(failure_of(settings), FILTERED, "").kind
    stays = F.coalesce(verdict, F.lit(False)) | (F.col("route") <= 0) | F.col("disposition").isNotNull()
    text = F.concat(F.lit("the filter does not select it: "), F.lit(settings["where"]))
    return rows.withColumns(
        {
            "disposition": F.when(stays, F.col("disposition")).otherwise(F.lit(kind)),
            "reason": F.when(stays, F.col("reason")).when(failed, F.lit(STEP_FAILED)).otherwise(F.lit(FILTERED)),
            "description": F.when(stays, F.col("description")).otherwise(text),
        }
    )
