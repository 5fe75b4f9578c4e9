"""Writes the pages that follow from the code (command line, federation file, data source, Kafka) or from records (fault matrix).

Run by `make docs`; `docs/check.py` compares what stands with what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main
from any_to_any_page import any_to_any_page
from fault_matrix_page import fault_matrix_page
from typer.core import TyperGroup

from isthmus.cli.app import create_app
from isthmus.connectors.amqp import option as amqp
from isthmus.connectors.eventhubs import option as eventhubs
from isthmus.connectors.iothub import option as iothub
from isthmus.connectors.kafka.option import ADMINISTRATION, PREFIX, SOURCE, TARGET
from isthmus.connectors.kafka.spark.option import READ, WRITE
from isthmus.connectors.rabbitmq import option as rabbitmq
from isthmus.connectors.rabbitmq_streams import option as rabbitmq_streams
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions, spec_of
from isthmus.connectors.spec import Kind, Setting, Spec
from isthmus.topology.file.reference_page import reference_page

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code; edits are lost. -->"


def pages() -> dict[Path, str]:
    """What each generated page should hold."""
    return {
        DOCS / "explanation" / "fault-matrix.md": fault_matrix_page(),
        DOCS / "explanation" / "any-to-any.md": any_to_any_page(),
        DOCS / "reference" / "cli.md": command_line(),
        DOCS / "reference" / "data-source.md": data_source(),
        DOCS / "reference" / "federation-file.md": reference_page(),
        DOCS / "reference" / "eventhubs.md": connector("Event Hubs", "eventhubs", eventhubs.SOURCE, eventhubs.TARGET),
        DOCS / "reference" / "iothub.md": connector("IoT Hub", "iothub", iothub.SOURCE, iothub.TARGET),
        DOCS / "reference" / "kafka.md": kafka(),
        DOCS / "reference" / "amqp.md": connector("AMQP 1.0", "amqp", amqp.SOURCE, amqp.TARGET),
        DOCS / "reference" / "rabbitmq.md": connector("RabbitMQ", "rabbitmq", rabbitmq.SOURCE, rabbitmq.TARGET),
        DOCS / "reference" / "rabbitmq-streams.md": connector(
            "Streams of RabbitMQ", "rabbitmq-streams", rabbitmq_streams.SOURCE, None
        ),
    }


def command_line() -> str:
    """The page of all verbs, their arguments and options."""
    lines = ["# The command line", "", NOTE, ""]
    lines += [
        'With `--json` the last line of the output is one JSON object; an error is `{"error": …}`. [Exit codes](exit-codes.md).',
        "",
    ]
    describe(typer.main.get_command(create_app()), "isthmus", lines)
    return "\n".join(lines).rstrip() + "\n"


def data_source() -> str:
    """The page of the options of Spark's data source."""
    lines = ["# The data source `servicebus`", "", NOTE, ""]
    lines += ['Options of `spark.readStream.format("servicebus")` and its kin; names are taken in any case, with or']
    lines[-1] += " without underscores. How to use it: [the how-to](../how-to/use-the-data-source.md)."
    lines += [
        "",
        "An option that is neither one of these nor one that Spark itself hands over is refused, with the nearest name.",
    ]
    for title, options in (("Reading", SourceOptions), ("Writing", SinkOptions)):
        lines += ["", f"## {title}", "", *options_table(spec_of(options))]
    return "\n".join(lines) + "\n"


def connector(title: str, kind: str, source: Spec, target: Spec | None) -> str:
    """The page of the options of a kind's sources and targets."""
    lines = [f"# {title}", "", NOTE, ""]
    ends = "a source and a target" if target is not None else "a source"
    lines += [f"Options of {ends} of kind `{kind}`. How to use them: [the how-to](../how-to/use-{kind}.md)."]
    for heading, spec in (("Reading", source), ("Writing", target)):
        if spec is None:
            continue
        lines += ["", f"## {heading}", "", *options_table(spec)]
    return "\n".join(lines) + "\n"


def kafka() -> str:
    """The page of the options of Kafka sources and targets."""
    lines = ["# Kafka", "", NOTE, ""]
    lines += [
        "Options of a source and a target of kind `kafka`. How to use them: [the how-to](../how-to/use-kafka.md)."
    ]
    lines += [
        "",
        f"Any other setting of librdkafka is given as `{PREFIX}NAME`, unless order, acknowledgement or commits depend on it.",
    ]
    for title, spec in (("Reading", SOURCE), ("Writing", TARGET)):
        lines += ["", f"## {title}", "", *options_table(spec)]
    lines += ["", "## The data source `isthmus_kafka`", ""]
    lines += [
        "Options of plain Spark's reads and writes ([how to use them](../how-to/use-kafka.md#plain-spark)); names are taken in any"
    ]
    lines[-1] += " case, with or without underscores."
    cluster = [each.name for each in ADMINISTRATION.settings]
    lines += [
        "",
        "Those that reach the cluster are the same as above: " + ", ".join(f"`{name}`" for name in cluster) + ".",
    ]
    for title, spec in (("Read", READ), ("Write", WRITE)):
        own = Spec(spec.name, spec.description, tuple(each for each in spec.settings if each.name not in cluster))
        lines += ["", f"### {title}", "", *options_table(own)]
    return "\n".join(lines) + "\n"


def options_table(spec: Spec) -> list[str]:
    """The table of a connector's options."""
    lines = ["| option | value | default | |", "| --- | --- | --- | --- |"]
    for setting in spec.settings:
        shown = setting.show(setting.default)
        default = "required" if setting.required else f"`{shown}`" if shown else ""
        lines.append(f"| `{setting.name}` | {value(setting)} | {default} | {setting.description} |")
    return lines


def value(setting: Setting) -> str:
    """What an option may hold."""
    if setting.kind is Kind.CHOICE:
        return " or ".join(f"`{choice}`" for choice in setting.choices)
    limit = "" if setting.minimum is None else f", {setting.minimum:g} or more"
    return setting.kind.value + limit


def describe(command: Any, path: str, lines: list[str]) -> None:
    """Append a command and, where it is a group, those in it."""
    if isinstance(command, TyperGroup):
        if path != "isthmus":
            lines += [f"## {path}", "", paragraph(command.help), ""]
        for name in sorted(command.commands):
            describe(command.commands[name], f"{path} {name}", lines)
        return
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
    usage = " ".join(
        [path, *(f"[{param.name.upper()}]" if not param.required else param.name.upper() for param in arguments)]
    )
    lines += [f"## {usage}", "", paragraph(command.help), ""]
    if arguments or options:
        lines += ["| | | default |", "| --- | --- | --- |"]
        lines += [row(param.name.upper(), param) for param in arguments]
        lines += [
            row(", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts)), param) for param in options
        ]
        lines.append("")


def row(name: str, param: Any) -> str:
    """One line of the table of a command's arguments and options."""
    default = param.default
    shown = "" if default is None or callable(default) or default in ("", False, ()) else f"`{default}`"
    return f"| {name} | {paragraph(getattr(param, 'help', '')).replace('|', chr(92) + '|')} | {shown} |"


def paragraph(text: str | None) -> str:
    """A help text as one paragraph of each of its parts."""
    parts = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return "\n\n".join(part for part in parts if part)


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
