"""Requests that nobody would send, over real HTTP: none is answered with a 500.

What is drawn depends on the seed alone, so a failure is seen again by running its test.
"""

import gzip
import hashlib
import http.client
import json
import random
import re
import socket
from urllib.parse import quote, urlsplit

import pytest

from prefect_prime.local import LocalPlatform, pages
from prefect_prime.local.app import api_routes

REQUESTS = 200
#: Well-formed uploads reach the most code: most requests are uploads.
ROUTES = sorted((route.method, route.name.partition(" ")[2]) for route in api_routes())
ROUTES += [("POST", "/traces")] * len(ROUTES)
PAGES = [("GET", route.path) for route in pages.router.routes]

TEXTS = [
    *(
        "",
        "a",
        "\x00",
        "a\x00b",
        "é",
        "🎲",
        "\u2028",
        "\ud800",
        "\r\n",
        " ",
        "'\"<>&;--",
        "{{7*7}}",
    ),
    *("../..", "%00", "%", "=", ",", "@latest", "null", "[]", "{}", "true", "9" * 30, "x" * 3000),
    *("0", "1", "-1", "1e999", "NaN", "2020-01-01", "0001-01-01T00:00:00+23:59", "-created_at"),
    *("9999-12-31T23:59:59-23:59", "W10=", "9" * 5000),
]
NUMBERS = [0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400, -(2**63), -(2**63) - 1]
NUMBERS += [0.1, 1e308, -1e308, 5e-324, float("inf"), float("nan"), 1.7e9]
KEYS = [
    *("id", "name", "environments", "tags", "metadata", "metrics", "status", "error_message"),
    *("samples", "traces", "nodes", "calls", "run", "work", "step", "env"),
    *("errors", "type", "message", "timing", "start", "end", "rewards", "score"),
    *(
        "weight",
        "ok",
        "is_timeout",
        "stop_condition",
        "num_total_tokens",
        "agent",
        "config",
        "model",
    ),
    *("task", "data", "idx", "key", "episode_id", "role", "content", "tool_calls"),
    *("finish_reason", "error", "suite_id", "team_id", "run_id", "config_source", "text"),
]
PARAMETERS = [
    *("limit", "cursor", "skip", "page", "raw", "run_id", "created_after", "created_before"),
    *("reward_min", "has_error", "upload_id", "sort", "query", "field", "role", "run_step"),
    *(
        "context.a",
        "after",
        "model",
        "environment_name",
        "suite_id",
        "team_id",
        "created_at",
        "step_min",
    ),
    *("run_type", "created_by"),
]
#: Around the depths at which orjson reads, and at which it writes.
DEPTHS = [100, 250, 251, 252, 253, 254, 255, 256, 1020, 1025, 5000]
CONTENT_TYPES = ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=\xff"]
CONTENT_TYPES += ["multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 300}"]


class Fuzz:
    """Draws paths, queries, headers and bodies; ``ids`` are known to the platform."""

    def __init__(self, seed, ids, environment):
        self.draw = random.Random(seed)  # noqa: S311 - no secret
        self.ids = ids
        self.environment = environment

    def one_in(self, number):
        return self.draw.randrange(number) == 0

    def text(self):
        if self.one_in(5):
            tops = self.draw.choices([0x80, 0x800, 0x110000], k=self.draw.randrange(12))
            return "".join(chr(self.draw.randrange(top)) for top in tops)
        return self.draw.choice(TEXTS)

    def value(self, depth=0):
        if self.one_in(40):
            return self.deep()
        if depth > 3 or self.one_in(2):
            return self.draw.choice([self.text(), self.draw.choice(NUMBERS), None, True])
        if self.one_in(2):
            return [self.value(depth + 1) for _ in range(self.draw.randrange(3))]
        return self.fields(depth + 1)

    def fields(self, depth=0):
        keys = self.draw.choices([*KEYS, self.text()], k=self.draw.randrange(5))
        return {key: self.value(depth) for key in keys}

    def deep(self):
        opened, closed = self.draw.choice([("[", "]"), ('{"a":', "}")])
        depth = self.draw.choice(DEPTHS)
        return Raw(f"{opened * depth}1{closed * depth}")

    def trace(self):
        known = {
            "id": self.draw.choice(["t1", "t2", "t\x00", f"t{self.draw.randrange(99)}"]),
            "run": {
                "id": self.draw.choice(["r", "\x00"]),
                "work": {"step": self.draw.choice(NUMBERS)},
            },
            "nodes": [{"message": {"role": "user", "content": self.value(2)}}],
            "num_total_tokens": self.draw.choice([0, 2**63 - 1]),
            "agent": {"name": self.draw.choice(["n", "\x00", None]), "config": {"model": "a/\x00"}},
            "rewards": {"a": self.draw.choice([1e308, {"score": 1e308, "weight": 1e308}])},
        }
        return known | (self.fields() if self.one_in(3) else {})

    def episode(self):
        members = {repr(trace["id"]): trace for trace in (self.trace(), self.trace())}
        known = {"id": f"e{self.draw.randrange(9)}", "traces": list(members.values())}
        return known | (self.fields() if self.one_in(3) else {})

    def json(self, value):
        text = json.dumps(value, ensure_ascii=self.one_in(2), default=lambda raw: raw.marked)
        return Raw.unmark(text).encode("utf-8", "surrogatepass")

    def torn(self, data):
        """``data`` with a few bytes changed or its end lost; mostly as it is."""
        data = bytearray(data)
        for _ in range(self.draw.choice([0, 0, 0, 0, 1, 5])):
            if data:
                data[self.draw.randrange(len(data))] = self.draw.randrange(256)
        return bytes(data[: self.draw.randrange(len(data) + 1)] if self.one_in(15) else data)

    def upload(self):
        episodes = self.one_in(2)
        draw = self.episode if episodes else self.trace
        lines = self.torn(b"\n".join(self.json(draw()) for _ in range(self.draw.randrange(1, 3))))
        headers = {
            "Idempotency-Key": f"sha256:{hashlib.sha256(lines).hexdigest()}",
            "Content-Type": "multipart/form-data; boundary=b",
            "X-Prime-Line-Format": "episode" if episodes else "trace",
        }
        context = {self.draw.choice(["run_type", "\x00"]): self.draw.choice(["eval", "\x00"])}
        metadata = self.json({"schema_version": 1, "context": context})
        encoding = b"identity"
        if self.one_in(2):
            lines, encoding = self.torn(gzip.compress(lines, 1)), b"gzip"
        part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n%s\r\n'
        body = part % (b"metadata", b"", metadata)
        body += part % (b"traces", b"Content-Encoding: %s\r\n" % encoding, lines) + b"--b--\r\n"
        if self.one_in(8):
            headers["Content-Type"] = self.draw.choice(CONTENT_TYPES)
        if self.one_in(8):
            headers[self.draw.choice(list(headers))] = "\xff"
        return (self.torn(body) if self.one_in(4) else body), headers

    def body(self, path):
        if path == "/traces":
            return self.upload()
        shapes = [
            self.value(),
            self.fields(),
            {"samples": [self.fields(), self.value()]},
            {"samples": [self.fields(), {"a": self.deep()}]},
            {"metrics": self.fields(), "metadata": self.fields(), "tags": [self.text()]},
            {"name": self.text(), "id": self.text(), "team_id": self.value()},
            {
                "name": "n",
                "environments": [{"id": self.environment}],
                "metadata": {"a": self.deep()},
            },
        ]
        data = self.json(self.draw.choice(shapes))
        return (self.torn(data) if self.one_in(4) else data), {"Content-Encoding": "gzip"}

    def path(self, template):
        def fill(_found):
            text = self.text() if self.one_in(6) else self.draw.choice(self.ids)
            return quote(text, safe="", errors="surrogatepass")

        count = self.draw.choice([0, 0, 1, 1, 2, 200])
        pairs = ((self.draw.choice(PARAMETERS), self.text()[:200]) for _ in range(count))
        query = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in pairs)
        return f"{re.sub(r'{[^}]*}', fill, template)}?{query}"


class Raw:
    """JSON that ``json.dumps`` could not write: it is put into the text afterwards."""

    def __init__(self, text):
        self.marked = f"raw:{text.encode().hex()}"

    @staticmethod
    def unmark(text):
        return re.sub(r'"raw:([0-9a-f]*)"', lambda found: bytes.fromhex(found[1]).decode(), text)


@pytest.mark.parametrize("seed", range(3))
def test_no_request_is_answered_with_a_500(seed):
    with LocalPlatform() as platform:  # raises at its end what failed inside
        with platform.credentials.get_client() as client:
            environment = client.resolve_environment("toy")["id"]
            made = client.create_evaluation(name="n", environments=[{"id": environment}])
        fuzz = Fuzz(seed, [made["id"], made["id"], "t1", "e1", "r", "t\x00"], environment)
        key = platform.credentials.api_key.get_secret_value()
        connection = http.client.HTTPConnection(urlsplit(platform.url).netloc, timeout=60)
        statuses = set()
        for _ in range(REQUESTS):
            method, template = fuzz.draw.choice([*ROUTES, *PAGES])
            prefix = "" if (method, template) in PAGES else "/api/v1"
            path = prefix + fuzz.path(template)
            body, headers = fuzz.body(template) if method in {"POST", "PUT"} else (None, {})
            headers = {name: value.encode("latin-1") for name, value in headers.items()}
            connection.request(method, path, body, {"Authorization": f"Bearer {key}", **headers})
            answer = connection.getresponse()
            answer.read()
            assert answer.status < 500, (method, path, headers, body)
            statuses.add(answer.status)
        connection.close()
    assert statuses >= {200, 400, 404, 422}  # it got into the routes, and was refused there


def garbage(draw):
    whole = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/evaluations/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{}",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        b"GET http://localhost/%ff%00 HTTP/1.0\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ]
    data = bytearray(draw.choice(whole) * draw.choice([1, 1, 3]))
    for _ in range(draw.randrange(3)):
        data[draw.randrange(min(len(data), 200))] = draw.randrange(256)
    return bytes(data)


def test_bytes_that_are_no_http_end_their_own_connection_only():
    draw = random.Random(5)  # noqa: S311 - no secret
    with LocalPlatform() as platform:
        address = urlsplit(platform.url)
        for _ in range(150):
            with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
                sent = garbage(draw)
                raw.sendall(sent)
                raw.shutdown(socket.SHUT_WR)
                try:
                    answer = raw.recv(65_536)
                except ConnectionResetError:
                    continue
                assert b" 500 " not in answer.partition(b"\r\n")[0], sent
        connection = http.client.HTTPConnection(address.netloc, timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
