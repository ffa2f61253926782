"""Evals in processes of their own, for tests to signal, to kill and to start again.

Importing Prefect takes seconds, so that one process does it once: each script then runs in a fork
of it, as its main module, and ends as an interpreter ends. Orders come as JSON lines on stdin; each
is answered with a line: the process's id, or how it ended.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    temporary_settings,
)
from support import wait_until

import prefect_prime.flows.reconcile  # noqa: F401 - a fork does not import it again


@dataclass
class EvalProcess:
    """A script that runs, or has run."""

    starter: "EvalProcesses"
    pid: int
    log: Path
    #: As of ``subprocess.Popen``; None while it runs.
    returncode: int | None = None

    @property
    def output(self) -> str:
        """What it printed, to either stream."""
        return self.log.read_text()

    def has_ended(self) -> bool:
        if self.returncode is None:
            self.returncode = self.starter.ask({"ended": self.pid})
        return self.returncode is not None

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        wait_until(self.has_ended)
        assert self.returncode is not None
        return self.returncode

    def signal(self, sent: signal.Signals) -> None:
        if not self.has_ended():
            os.kill(self.pid, sent)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()


class EvalProcesses:
    """Starts them. Its environment, and that of Prefect in them, is that of its own start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or ""},
        )

    def start(
        self, script: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> EvalProcess:
        """Run a script in this test's environment, and in what is given over it."""
        name = uuid4().hex
        path, log = (self._folder / f"{name}.{ending}" for ending in ("py", "log"))
        path.write_text(script)
        order = {
            "arguments": [str(path), *map(str, arguments)],
            "env": {**os.environ, **(env or {})},
            "log": str(log),
        }
        return EvalProcess(self, self.ask(order), log)

    @contextmanager
    def running(
        self, script: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> Iterator[EvalProcess]:
        """Such a script, which does not outlive the block."""
        started = self.start(script, *arguments, env=env)
        try:
            yield started
        finally:
            started.kill()

    def run(
        self, script: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> EvalProcess:
        """Such a script, once it has ended by itself."""
        with self.running(script, *arguments, env=env) as started:
            started.wait()
            return started

    def ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=30)


def run_script(order: dict[str, Any]) -> None:
    """In a fork: be the process of a script."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, stream)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["arguments"]
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        runpy.run_path(sys.argv[0], run_name="__main__")


def ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def main() -> None:
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            answer = ended(order["ended"])
            running -= {order["ended"]} if answer is not None else set()
        else:
            answer = os.fork()
            if answer == 0:
                run_script(order)
                return
            running.add(answer)
        print(json.dumps(answer), flush=True)  # noqa: T201 - whoever gives the orders reads it
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
