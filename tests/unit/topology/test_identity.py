"""isthmus.topology.identity: the settings of an identity, together, and its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.topology import lint, read
from isthmus.topology.identity import IDENTITIES, IdentityReference, identity_faults
from isthmus.topology.model import NamespaceRef

SECRET = IdentityReference(kind="client-secret", tenant="t", client_id="c", client_secret="env:S")
CERTIFICATE = IdentityReference(kind="client-certificate", tenant="t", client_id="c", certificate_file="c.pem")
FILE = """isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {host: jfk.servicebus.windows.net%s}
tasks:
  t: {pattern: move, queue: q, source: ewr, target: jfk}
"""


@pytest.mark.parametrize(
    "identity", [SECRET, CERTIFICATE, IdentityReference(kind="managed", client_id="c"), IdentityReference()]
)
def test_a_text_gives_the_same_identity(identity: IdentityReference) -> None:
    assert IdentityReference.parse(str(identity)) == identity


@pytest.mark.parametrize(
    "text", ["", "other", "managed;tenant=t", "client-secret;tenant=t", "managed;client_id", "cli;x=1"]
)
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option 'identity'"):
        IdentityReference.parse(text)


def test_a_secret_that_is_no_reference_is_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        IdentityReference.parse("client-secret;tenant=t;client_id=c;client_secret")
    assert "hunter2" not in str(raised.value)
    faults = lint(FILE % ", identity: client-secret, tenant: t, client_id: c, client_secret: hunter2")
    assert faults
    assert "hunter2" not in " ".join(map(str, faults))


def test_every_kind_says_what_it_needs_and_what_it_does_not_take() -> None:
    everything = {"tenant": "t", "client_id": "c", "client_secret": "env:S", "certificate_file": "f"}
    for kind in IDENTITIES:
        refused = {name for name, _, _ in identity_faults(IdentityReference(kind=kind, **everything))}
        taken = {name: value for name, value in everything.items() if name not in refused}
        assert not list(identity_faults(IdentityReference(kind=kind, **taken))), kind


def test_the_file_names_what_is_missing_with_its_place() -> None:
    found = [str(each) for each in lint(FILE % ", identity: client-secret, tenant: t")]
    assert len(found) == 2
    assert found[0].startswith("isthmus.yaml:4:")
    assert "namespace jfk: identity client-secret needs client_id" in found[0]
    assert "write client_secret: env:NAME" in found[1]


def test_an_identity_with_a_connection_string_is_a_fault() -> None:
    found = [str(each) for each in lint(FILE.replace("env:EWR", "env:EWR, tenant: t") % "")]
    assert len(found) == 1
    assert "namespace ewr: tenant needs host" in found[0]


def test_options_carry_references_only_and_files_are_anchored() -> None:
    federation = read(FILE % ", identity: client-certificate, tenant: t, client_id: c, certificate_file: keys/app.pem")
    options = federation.anchored(Path("/etc/isthmus")).namespaces["jfk"].options()
    assert options["identity"] == "client-certificate;tenant=t;client_id=c;certificate_file=/etc/isthmus/keys/app.pem"
    federation = read(FILE % ", identity: client-secret, tenant: t, client_id: c, client_secret: file:secret.txt")
    options = federation.anchored(Path("/etc/isthmus")).namespaces["jfk"].options()
    assert options["identity"].endswith("client_secret=file:/etc/isthmus/secret.txt")


def test_files_of_an_identity_in_one_text_are_anchored() -> None:
    """Otherwise they would be sought where the process happens to run."""
    settings = (("host", "h"), ("identity", "client-secret;tenant=t;client_id=c;client_secret=file:secret.txt"))
    hubs = NamespaceRef(alias="hubs", kind="eventhubs", settings=settings).anchored(Path("/etc/isthmus"))
    assert hubs.options()["identity"].endswith("client_secret=file:/etc/isthmus/secret.txt")
    plain = NamespaceRef(alias="hubs", kind="eventhubs", settings=(("identity", "managed"),))
    assert plain.anchored(Path("/etc/isthmus")).options() == {"identity": "managed"}


def test_i1_a_secret_in_the_text_is_refused_and_not_repeated() -> None:
    """It would be in plans, in Spark's options and in checkpoints; that it is no reference was reported when a route connected."""
    with pytest.raises(
        InvalidArgumentError, match="this is no reference to a secret; write client_secret=env:NAME"
    ) as raised:
        IdentityReference.parse("client-secret;tenant=t;client_id=c;client_secret=hunter2")
    assert "hunter2" not in str(raised.value)
