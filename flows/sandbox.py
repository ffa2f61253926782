"""A home, an environment and a Prefect server for one command, all gone when it ends.

Nothing of the person's own is used or touched: not the Prefect profile and server, not
``~/.prime``, no ``PREFECT_*`` or ``PRIME_*`` variable, no proxy, no settings file in the
current directory. Nothing but the loopback interface is used.

Prefect reads its settings when it is imported, so the command runs in a process of its
own. It starts together with the server, which takes some ten seconds for a new database.
"""

import argparse
import os
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from prefect_prime.errors import ConfigurationError
from prefect_prime.run_directory import read_run

#: Seconds that a process is given to end by itself.
_PATIENCE = 20.0
_POLL = 0.1
#: Lines of the server's output that are shown when it dies.
_TAIL = 20
_INTERRUPTED = 130
_FOREIGN = ("PREFECT", "PRIME_", "EVALUATION_ID")
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the demo in a sandbox; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.flows.demo",
        description="Run the demo eval on a platform and a Prefect server of its own, on this"
        " machine alone. Your Prefect profile, your keys and your settings are not used.",
    )
    parser.add_argument(
        "--real-run", metavar="DIR", type=_finished_run, help="a finished run to upload afterwards"
    )
    parser.add_argument(
        "--serve", action="store_true", help="keep the pages of both up until Ctrl-C"
    )
    given = parser.parse_args(arguments)
    command = ["prefect_prime.flows.showcase"]
    command += ["--real-run", given.real_run] if given.real_run else []
    command += ["--serve"] if given.serve else []
    return run_in_sandbox(command, ui=given.serve)


def _finished_run(path: str) -> str:
    try:
        run = read_run(path)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not run.environments:
        raise argparse.ArgumentTypeError(f"{path!r} does not say which environment was evaluated")
    return str(Path(path).expanduser().absolute())


def run_in_sandbox(command: Sequence[str], *, ui: bool) -> int:
    """Run ``python -m COMMAND...`` beside a Prefect server; returns its exit status.

    The server's address is the command's ``PREFECT_API_URL``; it may not answer yet. With
    ``ui`` the server has its pages, too. Ctrl-C and other signals to end reach the command
    as SIGTERM, and whatever happens, both processes are gone and the home is removed when
    this returns.
    """
    with tempfile.TemporaryDirectory(
        prefix="prefect-prime-demo-", ignore_cleanup_errors=True
    ) as folder:
        home = Path(folder)
        environment = _environment(home, _free_port(), ui=ui)
        log = home / "prefect-server.log"
        with _ended_by_signals() as stopped, _server(environment, home, log) as server:
            with _process(["-m", *command], environment, home) as running:
                status = _wait(running, server, stopped)
            if status is None:
                tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
                print("\n".join(["The Prefect server ended:", *tail]), file=sys.stderr)  # noqa: T201 - a command
                return 1
            return _INTERRUPTED if stopped and status else status


def _wait(
    running: "subprocess.Popen[bytes]", server: "subprocess.Popen[bytes]", stopped: list[int]
) -> int | None:
    """The command's exit status; None if the server ended before it."""
    told = 0
    while (status := running.poll()) is None:
        if server.poll() is not None:
            return None
        if len(stopped) > told:
            told += 1
            running.send_signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
        time.sleep(_POLL)
    return status


def _environment(home: Path, port: int, *, ui: bool) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(_FOREIGN) and not name.upper().endswith("_PROXY")
    }
    url = f"http://127.0.0.1:{port}/api"
    return {
        # Where `pip install --user` has put things does not move with HOME.
        "PYTHONUSERBASE": site.getuserbase(),
        **kept,
        "HOME": str(home),
        "PREFECT_HOME": str(home / "prefect-home"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_UI_ENABLED": "true" if ui else "false",
        "PREFECT_SERVER_UI_API_URL": url,
        # Seconds of start-up for types that only a person at the pages would use.
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "true" if ui else "false",
        # By default the pages are unpacked into the installed package.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect-ui"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # The pages have the whole log; the terminal is for what went wrong.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _server(
    environment: dict[str, str], home: Path, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    port = environment["PREFECT_API_URL"].removesuffix("/api").rpartition(":")[2]
    command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", port]
    with (
        log.open("wb") as output,
        _process(command, environment, home, output=output.fileno()) as running,
    ):
        yield running


@contextmanager
def _process(
    arguments: Sequence[str],
    environment: dict[str, str],
    home: Path,
    *,
    output: int | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python process that no signal reaches but from here, and that ends with the block."""
    running = subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, *arguments],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Signals that ask for the end, collected in place of their usual effect."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in _STOPPING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
