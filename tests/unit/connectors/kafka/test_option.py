"""isthmus.connectors.kafka.option: refused options, and the settings of librdkafka."""

from __future__ import annotations

import pytest

from isthmus.connectors.kafka.cluster import settings
from isthmus.connectors.kafka.connector import CONNECTOR, dispositions_of
from isthmus.connectors.kafka.option import read_cluster, read_source, read_target
from isthmus.errors import ConfigError

OPTIONS = {"bootstrap_servers": "a:9092", "topic": "t"}
SOURCE = {**OPTIONS, "group": "g"}
CLUSTER = {"bootstrap_servers": "a:9092"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "t", "group": "g"}, "needs bootstrap_servers"),
        (OPTIONS, "needs group"),
        ({**SOURCE, "grupp": "x"}, "has no option 'grupp'"),
        ({**SOURCE, "start": "middle"}, "write start: earliest or latest"),
        ({**SOURCE, "kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is set by isthmus"),
        ({**SOURCE, "kafka.sasl.password": "hush"}, "write password=env:NAME"),
        ({**SOURCE, "password": "hush", "security_protocol": "sasl_ssl", "username": "u"}, "password"),
        (
            {**SOURCE, "kafka.sasl.oauthbearer.client.secret": "hush"},
            "write kafka.sasl.oauthbearer.client.secret=env:NAME",
        ),
        *(
            ({**SOURCE, f"kafka.sasl.oauthbearer.{name}": "hush"}, f"write kafka.sasl.oauthbearer.{name}=env:NAME")
            for name in (
                "client.credentials.client.secret",
                "assertion.private.key.passphrase",
                "assertion.private.key.pem",
            )
        ),
        ({**SOURCE, "username": "u"}, "need SASL"),
        ({**SOURCE, "security_protocol": "sasl_ssl"}, "needs username"),
        ({**SOURCE, "ca_file": "/x"}, "certificates need TLS"),
        ({**SOURCE, "security_protocol": "ssl", "key_file": "/x"}, "must be used together"),
        ({**SOURCE, "dead_letter_topic": "t"}, "the topic itself"),
    ],
)
def test_bad_options_are_refused_by_name_without_their_secrets(options: dict[str, str], text: str) -> None:
    """I1, I2, I3."""
    with pytest.raises(ConfigError) as raised:
        read_source(options)
    assert text in str(raised.value)
    assert "hush" not in str(raised.value)


def test_checksums_are_not_checked_because_the_client_reads_on_at_an_invented_offset() -> None:
    """I3."""
    for read, options in ((read_source, SOURCE), (read_target, OPTIONS), (read_cluster, CLUSTER)):
        with pytest.raises(ConfigError, match=r"kafka.check.crcs cannot be used: after a wrong checksum .*remove it"):
            read({**options, "kafka.Check.CRCs": "True"})
        read({**options, "kafka.check.crcs": "false"})


def test_every_fault_is_named_at_once() -> None:
    """I1."""
    with pytest.raises(ConfigError) as raised:
        read_target({"kafka.acks": "0", "partitioning": "x", "zzz": "1"})
    assert len(raised.value.faults) == 5


def test_secrets_are_resolved_where_a_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    options = read_source(
        {
            **SOURCE,
            "security_protocol": "sasl_ssl",
            "sasl_mechanism": "SCRAM-SHA-512",
            "username": "u",
            "password": "env:KAFKA_PASSWORD",
            "ca_file": "/ca.pem",
            "kafka.Fetch.Max.Bytes": "1000",
        }
    )
    assert "hush" not in repr(options)
    settings = options.client()
    assert settings["sasl.password"] == "hush"
    assert settings["ssl.ca.location"] == "/ca.pem"
    assert settings["fetch.max.bytes"] == "1000"


def test_a_log_sets_nothing_aside_unless_its_options_name_where() -> None:
    assert CONNECTOR.capabilities.is_log
    assert not CONNECTOR.capabilities.dispositions
    assert "dead-letter" not in dispositions_of(SOURCE)
    assert "dead-letter" in dispositions_of({**SOURCE, "dead_letter_topic": "d"})


def test_a_policy_is_read_and_what_a_record_cannot_have_is_refused() -> None:
    """I1."""
    target = {"bootstrap_servers": "a", "topic": "t"}
    assert read_target({**target, "policy": '{"removed": ["x"]}'}).policy == '{"removed": ["x"]}'
    for text, reported in (
        ("nonsense", "cannot be read"),
        ('{"ttl_ceiling_ms": 1, "deadline_ms": 1}', "does not expire"),
    ):
        with pytest.raises(ConfigError, match=reported):
            read_target({**target, "policy": text})


def test_a_connection_that_was_quiet_is_made_again() -> None:
    """Where a firewall in between drops it after four minutes, a request over it would get no answer."""
    assert settings(read_target(OPTIONS))["connections.max.idle.ms"] < 240_000
    assert settings(read_target({**OPTIONS, "kafka.connections.max.idle.ms": "0"}))["connections.max.idle.ms"] == "0"
