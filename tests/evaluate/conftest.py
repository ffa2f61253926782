"""A model behind a real endpoint, and verifiers evaluations that ask nobody else."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support import DATA

from prefect_prime.local import LocalPlatform

TOY = DATA.parent / "verifiers-toy"


class Model(ThreadingHTTPServer):
    """Chat completions on the loopback address: it adds, waits when told HOLD, refuses REFUSE."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        #: Set when a rollout waits; it waits until the other is set.
        self.holding, self.release = Event(), Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        self.server.calls += 1
        self.server.at_once += 1
        self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        if "HOLD" in text:
            self.server.holding.set()
            self.server.release.wait(60)
        numbers = re.search(r"(\d+) \+ (\d+)", text)
        reply = str(int(numbers[1]) + int(numbers[2])) if numbers else "fine"
        message = {"role": "assistant", "content": reply}
        self.server.at_once -= 1
        self._answer(
            400 if "REFUSE" in text else 200,
            {
                "id": f"chatcmpl-{self.server.calls}",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
            },
        )

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # whoever asked was killed
            self.wfile.write(body)


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as running:
        Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.release.set()
        running.shutdown()


@pytest.fixture(autouse=True)
def where_things_are(
    platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The toy environments can be imported, the platform is in the environment."""
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("TOY_KEY", "toy")
    monkeypatch.chdir(tmp_path)
    credentials = platform.credentials
    monkeypatch.setenv("PRIME_API_KEY", credentials.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", credentials.base_url)
    monkeypatch.setenv("PRIME_TRACES_URL", credentials.traces_url or "")


Write = Callable[..., Path]


@pytest.fixture
def write(model: Model, tmp_path: Path) -> Write:
    """Write an ``eval.toml`` of the shape that verifiers documents."""

    def written(
        kinds: list[str], *, name: str | None = "toy", rollouts: int = 2, extra: str = ""
    ) -> Path:
        path = tmp_path / "eval.toml"
        lines = [
            "# byte for byte: caf\u00e9\r",
            'model = "fake-model"',
            f"rollouts_per_example = {rollouts}",
            "max_concurrent = 2",
            "push = true",
            'output_dir = "outputs"',
            *([] if name is None else ["[run]", f'name = "{name}"']),
            "[client]",
            f'base_url = "{model.url}"',
            'api_key_var = "TOY_KEY"',
            "[sampling]",
            "temperature = 0.0",
            "[env.taskset]",
            'id = "toy-eval"',
            f"kinds = {json.dumps(kinds)}",
            extra or '[env.agent.runtime]\ntype = "subprocess"',
        ]
        path.write_bytes("\n".join(lines).encode())
        return path

    return written
