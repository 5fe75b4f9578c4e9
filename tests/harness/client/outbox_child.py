"""An application that sends numbered messages durably until it is killed: `python outbox_child.py CONNECTION FOLDER FIRST`.

It writes a line with each number after `send_messages` returned for it.
"""

from __future__ import annotations

import random
import sys

from azure.servicebus import ServiceBusMessage

from isthmus.client import DurableSender


def main(connection: str, folder: str, first: int) -> None:
    """Send from `first` on, one message or several in a call."""
    source = random.Random(first)
    number = first
    with DurableSender(connection, "orders", folder) as sender:
        while True:
            count = source.choice((1, 1, 1, 5, 40))
            wanted = range(number, number + count)
            sender.send_messages([ServiceBusMessage(b"%d" % each, message_id=str(each)) for each in wanted])
            number += count
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
