"""A model behind a real endpoint, and verifiers configs that ask nobody else."""

import json
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from support import DATA

#: The folder of the task set and of the environment with two agents, for the Python path.
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

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release.set()
        self.shutdown()
        self.server_close()


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


def write_config(
    model: Model,
    path: Path,
    kinds: list[str],
    *,
    name: str | None = "toy",
    rollouts: int = 2,
    extra: str = "",
) -> Path:
    """An ``eval.toml`` of the shape that verifiers documents."""
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
