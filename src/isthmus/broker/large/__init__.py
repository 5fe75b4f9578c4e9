"""Large messages in and out, without delaying other clients.

What it is: uploads (frames to a file), streams (a file to frames), and the threads that touch the disk for both. What it
is not: the entities that store them (`isthmus.entities`).
"""

from __future__ import annotations

from isthmus.broker.large.body_check import check_bodies
from isthmus.broker.large.desk import LARGE_BYTES, LargeDesk
from isthmus.broker.large.rope import Rope, encode_rope
from isthmus.broker.large.stream import RETRIES, Stream
from isthmus.broker.large.upload import Upload

__all__ = ["LARGE_BYTES", "LargeDesk", "RETRIES", "Rope", "Stream", "Upload", "check_bodies", "encode_rope"]
