"""What Spark asks of a streaming read at the driver, before anything connects."""

from pyspark.sql.streaming.datasource import ReadAllAvailable

from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.source import LeasePartition, LeaseReader

OPTIONS = {"connection": "env:NOT_SET", "entity": "q"}


def seconds_of(reader: LeaseReader, lease: int) -> list[float]:
    partitions = reader.partitions({"lease": lease - 1}, {"lease": lease})
    return [part.seconds for part in partitions if isinstance(part, LeasePartition)]


def test_the_first_lease_of_a_query_is_a_rehearsal() -> None:
    reader = LeaseReader(SourceOptions.read(OPTIONS))
    assert reader.latestOffset({"lease": 7}, ReadAllAvailable()) == {"lease": 8}
    assert seconds_of(reader, 8) == [0.0]
    assert all(200 < seconds < 400 for seconds in seconds_of(reader, 9))


def test_a_lease_that_is_repeated_after_a_crash_is_none() -> None:
    reader = LeaseReader(SourceOptions.read(OPTIONS | {"look_seconds": "0.01"}))
    assert all(200 < seconds < 400 for seconds in seconds_of(reader, 8))
    assert all(200 < seconds < 400 for seconds in seconds_of(reader, 9))


def test_a_run_with_an_end_and_a_settlement_at_commit_have_none() -> None:
    for more, through in (({}, True), ({"settle": "commit"}, False)):
        reader = LeaseReader(SourceOptions.read(OPTIONS | more))
        driver = reader._here
        driver._available_now, driver._stopping = through, True
        assert reader.latestOffset({"lease": 7}, ReadAllAvailable()) == {"lease": 7}
