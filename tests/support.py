"""Helpers that tests import."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from prefect_prime.credentials import Credentials
from prefect_prime.local import LocalPlatform
from prefect_prime.platform_client import PlatformClient

DATA = Path(__file__).parent / "data" / "verifiers-runs"
REAL_RUNS = sorted(folder.parent for folder in DATA.glob("*/expected"))
T = TypeVar("T")


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's ``traces.jsonl``."""
    lines = (folder / "traces.jsonl").read_bytes().split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]


def expected_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "expected" / "samples.json").read_bytes())
    return rows


def expected_summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "expected" / "summary.json").read_bytes())
    return summary


def canonical(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as a set that may hold equal ones: every value counts, the order does not."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def wait_until(condition: Callable[[], T | None], *, seconds: float = 60.0) -> T:
    """The first truthy answer of ``condition``; fails after ``seconds``."""
    deadline = monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        sleep(0.05)


def account(credentials: Credentials) -> dict[str, str]:
    """The environment of a machine with these credentials."""
    values = {
        "PRIME_API_KEY": credentials.api_key.get_secret_value(),
        "PRIME_API_BASE_URL": credentials.base_url,
        "PRIME_FRONTEND_URL": credentials.frontend_url,
        "PRIME_TRACES_URL": credentials.traces_url,
    }
    return {name: value for name, value in values.items() if value}


class Evaluations:
    """What the platform has, read over its API."""

    def __init__(self, client: PlatformClient) -> None:
        self.client = client

    def __call__(self, evaluation_id: str) -> dict[str, Any]:
        return self.client.get_evaluation(evaluation_id)

    def rows(self, evaluation_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        page = 1
        while True:
            answer = self.client.list_samples(evaluation_id, page=page, limit=100)
            rows += answer["samples"]
            if not answer["has_more"]:
                return rows
            page += 1

    def named(self, name: str) -> list[dict[str, Any]]:
        found = self.client.list_evaluations(limit=1000)["evaluations"]
        return [evaluation for evaluation in found if evaluation["name"] == name]

    def only(self, name: str) -> dict[str, Any]:
        """The one evaluation of a name; fails where there are more."""
        (found,) = self.named(name)
        return self(found["id"])


def the_traces_of(platform: LocalPlatform, evaluation_id: str) -> list[str]:
    """The ids of an evaluation's traces, as Prime Traces has them."""
    found: list[str] = []
    cursor = None
    with platform.credentials.get_traces_client() as client:
        while True:
            page = client.list(run_id=evaluation_id, limit=100, cursor=cursor)
            found += [item.trace_id for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found
