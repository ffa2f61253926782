"""What ``python -m prefect_prime.flows.demo`` shows, from inside its sandbox.

The demo eval runs against an embedded platform; then, if there is one, a finished run is
uploaded. What is printed was read back from the platform. Started by ``flows.sandbox``, in
whose environment alone it makes sense.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from prefect_prime.credentials import Credentials
from prefect_prime.flows.demo import demo
from prefect_prime.flows.report import Shown, print_evaluation, print_head, print_next_steps
from prefect_prime.flows.upload import upload
from prefect_prime.local import LocalPlatform

#: Seconds: for a server with a new database, on a slow machine, with cold caches.
_SERVER_START = 180.0
_POLL = 0.1
#: So small that segments close, and go, while the eval still runs.
_SEGMENT_BYTES = 64 * 1024
_INTERRUPTED = 130


def main() -> int:
    """Run everything; returns the exit status: 0 if every record arrived."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser()
    parser.add_argument("--real-run", type=Path)
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    console = Console(highlight=False)
    try:
        with LocalPlatform(Path.home() / "platform-data") as platform:
            whole = _show(console, platform, given.real_run, serve=given.serve)
            if given.serve:
                _serve_until_interrupted()
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return _INTERRUPTED
    return 0 if whole else 1


def _show(console: Console, platform: LocalPlatform, real_run: Path | None, *, serve: bool) -> bool:
    began = time.monotonic()
    _use(platform.credentials)
    api_url = os.environ["PREFECT_API_URL"]
    ui_url = api_url.removesuffix("/api") if serve else None
    print_head(console)
    with _step(console, "A Prefect server starts, with a new database"):
        _wait_for(api_url)
    title = "An eval: toy-solver tries 100 arithmetic problems, 3 times each"
    shown = [_watched(console, platform, ui_url, title, demo)]
    if real_run is not None:
        title = f"An upload: the finished run {real_run.name!r}"
        shown.append(_watched(console, platform, ui_url, title, upload, path=str(real_run)))
    for evaluation in shown:
        print_evaluation(console, evaluation)
    print_next_steps(
        console,
        seconds=time.monotonic() - began,
        platform_url=platform.url if serve else None,
        prefect_url=ui_url,
    )
    return all(evaluation.whole for evaluation in shown)


def _use(credentials: Credentials) -> None:
    """Say where the platform is, as anybody would: in the environment."""
    os.environ.update(
        PRIME_API_KEY=credentials.api_key.get_secret_value(),
        PRIME_API_BASE_URL=credentials.base_url,
        PRIME_FRONTEND_URL=credentials.frontend_url,
        PRIME_TRACES_URL=credentials.traces_url or "",
        PREFECT_PRIME_SEGMENT_BYTES=str(_SEGMENT_BYTES),
    )


def _wait_for(api_url: str) -> None:
    """Return when the Prefect server answers. That it may die is for the sandbox to see."""
    deadline = time.monotonic() + _SERVER_START
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{api_url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(_POLL)
    raise TimeoutError(f"the Prefect server did not answer within {_SERVER_START:.0f} s")


def _watched(
    console: Console,
    platform: LocalPlatform,
    ui_url: str | None,
    title: str,
    flow: Callable[..., Any],
    **parameters: Any,
) -> Shown:
    """Run a flow, and tell meanwhile what arrives at the platform."""
    skipped = len(platform.requests)
    began = time.monotonic()
    first: list[float] = []
    over = threading.Event()

    def uploads(kind: str) -> int:
        return sum(
            request.method == "POST" and request.path.endswith(f"/{kind}")
            for request in platform.requests[skipped:]
        )

    with _step(console, title) as tell:

        def watch() -> None:
            while not over.wait(_POLL / 2):
                traces, samples = uploads("traces"), uploads("samples")
                if (traces or samples) and not first:
                    first.append(time.monotonic() - began)
                tell(f"arrived so far: {traces} uploads of traces, {samples} of samples")

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            result = flow(**parameters)
        finally:
            over.set()
            watching.join()
    seconds = time.monotonic() - began
    with platform.credentials.get_client() as client:
        evaluation = client.get_evaluation(result.evaluation_id)
        rows = client.list_samples(result.evaluation_id, limit=1)["total"]
    flow_run_url = evaluation["metadata"]["prefect"]["flow_run_url"]
    return Shown(
        evaluation=evaluation,
        result=result,
        rows=rows,
        uploads={kind: uploads(kind) for kind in ("traces", "samples")},
        first_upload=first[0] if first else None,
        seconds=seconds,
        flow_run_url=None if ui_url is None else flow_run_url,
    )


@contextmanager
def _step(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show that something goes on, and at its end how long it took."""
    began = time.monotonic()
    with console.status(text) as status:
        yield lambda detail: status.update(f"{text} [dim]{detail}[/]")
    console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - began:.1f} s[/]")


def _serve_until_interrupted() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    sys.exit(main())
