"""Cases of the page's section Messages are missing, or there are too many."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.servicebus.spark.source_settler import SourceSettler
from isthmus.operations.detection import check_detection
from isthmus.replication.step.base import guarded
from isthmus.replication.step.chain.opener import open_message_step
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.step import STEPS, StepDeclaration
from troubleshooting.case import Stage, elsewhere, shows

_ATOM = "http://www.w3.org/2005/Atom"
_SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_DELIVERY = "tests/unit/bridge/delivery/test_delivery.py"
_REDRIVE = "tests/interop/operator/test_redrive_diverted.py"
_REWRITER = "tests/unit/connectors/servicebus/message/test_message_rewriter.py"

elsewhere(
    "verify", "tests/unit/cli/supervision/test_supervision_verbs.py::test_verify_ends_with_3_where_it_cannot_decide"
)
elsewhere("RefusedByTarget", f"{_DELIVERY}::test_a_message_at_fault_is_set_aside_at_once_and_delays_no_other")
elsewhere("KilledItsWorker", "tests/fault/route/test_poison.py::test_a_message_that_kills_its_worker_is_set_aside")
elsewhere(
    "are of no route of this file, or have lost their provenance",
    f"{_REDRIVE}::test_a_message_of_no_route_stays_and_is_reported",
)
elsewhere("another receiver has the session", f"{_REDRIVE}::test_a_queue_with_sessions_is_emptied_session_by_session")
elsewhere(
    "messages are in …/$DeadLetterQueue",
    "tests/unit/cli/supervision/test_redrive_verb.py::test_what_the_divert_queue_dead_lettered_itself_is_reported_with_how_to_return_it",
)
elsewhere("HopBudgetUsedUp", f"{_REWRITER}::test_used_up_hops_are_dead_lettered")
elsewhere("Visited", f"{_REWRITER}::test_i3_the_only_copy_of_a_message_that_would_return_is_dead_lettered")
elsewhere(
    "MessageTooLarge",
    "tests/unit/connectors/servicebus/spark/test_sink.py::test_a_message_that_the_target_refuses_fails_a_write_that_has_no_source",
)


def _after_step(kind: str, body: bytes, **settings: str | dict[str, str]) -> str:
    """What became of a message that a step refused."""
    defaults = {each.name: each.default for each in STEPS[kind].spec.settings if each.default is not None}
    step = open_message_step(StepDeclaration(kind, {**defaults, **settings}))
    return str(guarded(step, StepMessage(section.encode_message(body))))


@shows("ValidationFailed")
def _not_valid(stage: Stage) -> str:
    schema = stage.folder / "schema.json"
    schema.write_text(json.dumps({"type": "object", "required": ["a"]}))
    return _after_step("validate", b"{}", schema=str(schema))


@shows("StepFailed")
def _failed_step(stage: Stage) -> str:
    return _after_step("map", b"[1]", fields={"a": "a"})


@shows("The maximum entity size has been reached or exceeded")
def _full(stage: Stage) -> str:
    client = ServiceBusClient.from_connection_string(stage.serve().connection_string, retry_total=0)
    with client, contextlib.ExitStack() as stack:
        sender = stack.enter_context(client.get_queue_sender("small"))
        try:
            for _ in range(20):
                sender.send_messages(ServiceBusMessage(bytes(200_000)))
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            return str(error)
    return ""


@shows("… detects duplicates: within its window … it accepts a message")
def _detection(stage: Stage) -> None:
    settings = (
        "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
        "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>"
    )
    described = f'<QueueDescription xmlns="{_SERVICE_BUS}">{settings}</QueueDescription>'
    answer = f'<entry xmlns="{_ATOM}"><content>{described}</content></entry>'.encode()
    check_detection(lambda *_: answer, "orders", new_message_ids=False, keep_message_ids=False)


@shows("message … has a disposition and no lock token")
def _no_token(stage: Stage) -> None:
    stage.patch.setattr(SourceSettler, "_connect", lambda _: None)
    stage.patch.setattr(SourceSettler, "__init__", lambda made: setattr(made, "_tokens", {}))
    settler = cast("Any", SourceSettler)()
    settler.settle(7, Disposition("dead-letter", "why", ""))
