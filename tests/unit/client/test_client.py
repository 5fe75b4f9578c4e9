"""The names of `isthmus.client` and `isthmus.client.aio`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isthmus.client
import isthmus.client.aio
import isthmus.client.outbox


def test_every_name_is_there() -> None:
    for module in (isthmus.client, isthmus.client.aio, isthmus.client.outbox):
        for name in module.__all__:
            assert getattr(module, name) is not None, name


@pytest.mark.parametrize("module", ["isthmus.client", "isthmus.client.aio"])
def test_the_import_is_quick_and_needs_no_sdk(module: str) -> None:
    asked = f"import sys, {module}; print(any(name.startswith(('azure', 'pyspark')) for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_a_missing_sdk_names_the_line_that_installs_it() -> None:
    asked = (
        "import sys, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name.startswith('azure') else find(name, *rest)\n"
        "import isthmus.client\n"
        "try:\n    isthmus.client.ReplicatedSender\n"
        "except Exception as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == (
        "isthmus.client.ReplicatedSender needs azure.servicebus, which is not installed: pip install isthmus"
    )


def test_nothing_of_spark_or_the_store_is_needed() -> None:
    asked = (
        "import sys, isthmus.client as client\n"
        "for name in client.__all__: getattr(client, name)\n"
        "print([name for name in ('pyspark', 'rocksdict', 'uvloop') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
