"""Processes of their own, to kill; and ledgers that are closed when their test is over."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_prime.spool import database

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run a piece of Python; it ends with the test. Its stdout and stdin are pipes."""
    started = []

    def run(source: str, *arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=dict(os.environ),
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def closed_ledgers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test leaves open: Python 3.13 warns of a connection that is collected open."""
    opened: set[database.Database] = set()  # in place of weak references, which lose them before
    monkeypatch.setattr(database, "_open", opened)
    yield
    for each in opened:
        each.close()
