"""Processes of their own, to kill."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
