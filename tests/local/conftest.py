import gzip
import hashlib
import json
from pathlib import Path

import httpx
import pytest
from prime_traces import LineFormat, TracesClient

from prefect_prime.local import LocalPlatform
from prefect_prime.projection import example_id, sample_rows

RUNS = Path(__file__).parents[1] / "data" / "verifiers-runs"


@pytest.fixture(scope="module")
def platform():
    """One platform for the tests of a module; each test uses ids of its own."""
    with LocalPlatform() as running:
        yield running


@pytest.fixture(scope="module")
def connect():
    """``connect(platform)`` is an HTTP client of it, ``/api/v1`` before every path."""
    clients = []

    def connected(platform, key=None):
        key = key or platform.credentials.api_key.get_secret_value()
        client = httpx.Client(
            base_url=f"{platform.url}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            follow_redirects=True,
        )
        clients.append(client)
        return client

    yield connected
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def api(platform, connect):
    return connect(platform)


@pytest.fixture
def new_evaluation():
    """``new_evaluation(api, ...)`` creates one and returns its id."""

    def create(api, **fields):
        answer = api.post("/environmentshub/resolve", json={"name": "gsm8k"})
        environment = answer.json()["data"]["id"]
        body = {"name": "an eval", "environments": [{"id": environment}], **fields}
        answer = api.post("/evaluations/", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["evaluation_id"]

    return create


@pytest.fixture
def read_run():
    """``read_run(name)`` gives the lines of a real run, with their newlines."""

    def lines(name):
        return (RUNS / name / "traces.jsonl").read_bytes().splitlines(keepends=True)

    return lines


@pytest.fixture
def post_traces():
    """``post_traces(api, data, ...)`` sends one upload as the public client does."""

    def post(api, data, *, metadata=b'{"schema_version": 1}', compress=True, **headers):
        if not isinstance(data, bytes):
            data = b"".join(json.dumps(record).encode() + b"\n" for record in data)
        part = ("traces.jsonl", data, "application/x-ndjson")
        if compress:
            encoding = {"Content-Encoding": "gzip"}
            part = ("traces.jsonl", gzip.compress(data, 1), part[2], encoding)
        sent = {"Idempotency-Key": f"sha256:{hashlib.sha256(data).hexdigest()}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return api.post(
            "/traces",
            headers=sent,
            files={"metadata": (None, metadata, "application/json"), "traces": part},
        )

    return post


@pytest.fixture
def point_at(monkeypatch):
    """``point_at(platform)`` sets the variables that every public client reads."""

    def point(platform):
        for name in ("PRIME_API_BASE_URL", "PRIME_TRACES_URL", "PRIME_FRONTEND_URL"):
            monkeypatch.setenv(name, platform.url)
        monkeypatch.setenv("PRIME_API_KEY", platform.credentials.api_key.get_secret_value())

    return point


@pytest.fixture(scope="module")
def fetch(platform):
    """``fetch(path)`` is what whoever opens a page without a key gets."""
    with httpx.Client(base_url=platform.url) as client:
        yield client.get


@pytest.fixture(scope="module")
def read(fetch):
    """``read(path)`` is a page's HTML."""

    def page(path):
        answer = fetch(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.text

    return page


@pytest.fixture
def store_rows(api):
    """``store_rows(evaluation, *samples)`` stores samples as they are."""

    def stored(evaluation, *samples):
        answer = api.post(f"/evaluations/{evaluation}/samples", json={"samples": samples})
        assert answer.is_success, answer.text

    return stored


@pytest.fixture
def store_episodes(store_rows):
    """``store_episodes(evaluation, episodes)`` stores their samples, rollouts counted."""

    def stored(evaluation, episodes):
        counts, rows = {}, []
        for one in episodes:
            example = example_id(one)
            counts[example] = counts.get(example, 0) + 1
            rows += sample_rows(one, counts[example]).rows
        store_rows(evaluation, *rows)

    return stored


@pytest.fixture(scope="module")
def client(platform):
    credentials = platform.credentials
    with TracesClient(
        api_key=credentials.api_key.get_secret_value(), base_url=credentials.traces_url
    ) as connected:
        yield connected


@pytest.fixture(scope="module")
def upload(client):
    def send(records, line_format=LineFormat.TRACE, **context):
        receipts = client.upload_records(
            records, line_format=line_format, context=context or None, max_attempts=1
        )
        return receipts[0].upload_id

    return send
