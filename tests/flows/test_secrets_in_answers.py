"""A Prime Traces that is none, or that repeats what it was sent, learns and spreads no secret."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prefect_prime.credentials import Credentials
from prefect_prime.flows import EvalResult, current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
KEY = "pk-never-to-be-seen-51f7"
PAGE = f"<html>\x1b[31mSign in<pre>Authorization: Bearer {KEY}</pre></html>" + "x" * 20_000


@dataclass
class Stranger:
    """A server that answers everything alike, and counts."""

    status: int
    location: str = ""
    url: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def running(stranger: Stranger) -> Iterator[Stranger]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            stranger.asked.append(self.path)
            content = PAGE.encode()
            self.send_response(stranger.status)
            self.send_header("Content-Type", "text/html")
            if stranger.location:
                self.send_header("Location", stranger.location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Silent: pytest shows what a test asserts."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stranger.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield stranger
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "told"),
    [(200, "not JSON"), (403, "Sign in"), (307, "redirects"), (400, "Sign in")],
)
def test_an_answer_of_somebody_else_is_an_error_that_repeats_no_key(
    own_home: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    told: str,
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "2")
    caplog.set_level(logging.DEBUG)
    with ExitStack() as started:
        platform = started.enter_context(LocalPlatform(api_key=KEY))
        elsewhere = started.enter_context(running(Stranger(200)))
        page = started.enter_context(running(Stranger(status, f"{elsewhere.url}/x?t=1")))

        @eval_flow(
            environments=["toy"],
            credentials=Credentials(api_key=KEY, base_url=platform.url, traces_url=page.url),
        )
        def entrypoint() -> None:
            current_run().log_episodes([episode([{"role": "user", "content": "?"}], example_id=1)])

        result: EvalResult = entrypoint()  # type: ignore[assignment]  # None is an EvalResult

    # A page in place of a receipt may be gone the next time; the rest is for a person to mend.
    assert result.losses["traces"] == {"failed": int(status != 200), "pending": int(status == 200)}
    assert result.losses["samples"] == {"failed": 0, "pending": 0}
    assert page.asked
    assert elsewhere.asked == []
    errors = [each.message for each in caplog.records if "POST /traces" in each.message]
    assert any(told in message for message in errors), errors
    assert all(len(message) < 2_000 for message in errors)
    ours = [each for each in caplog.records if each.name.startswith("prefect")]
    assert not any("\x1b" in each.message for each in ours)
    assert KEY not in caplog.text
    spooled = [file for file in own_home.rglob("*") if file.is_file()]
    assert any(file.name == "ledger.sqlite3" for file in spooled)
    assert [file for file in spooled if KEY.encode() in file.read_bytes()] == []
