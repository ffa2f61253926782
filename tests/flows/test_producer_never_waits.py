"""Logging costs the same whatever the platform does: nobody waits for it but the end."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from faulty_proxy import Fault, FaultyProxy
from support import Evaluations

from prefect_prime import creation
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")

RECORDS = 120
#: So that those records fill many more segments than there are uploads in flight.
SEGMENT_BYTES = "4000"


class Closed:
    """A platform that gives no upload an answer until its gate opens."""

    def __init__(self, how: Fault | None) -> None:
        self.how = how
        self.gate = threading.Event()
        self.uploads = threading.Event()

    def __call__(self, method: str, path: str) -> Fault | None:
        if method != "POST" or not path.endswith(("/traces", "/samples")) or self.gate.is_set():
            return None
        self.uploads.set()
        if self.how is None:
            assert self.gate.wait(120), "the eval waited for the platform"
        return self.how


@pytest.fixture
def proxy(platform: LocalPlatform) -> Iterator[FaultyProxy]:
    with FaultyProxy(platform) as running:
        yield running


@pytest.mark.parametrize(
    "how",
    [None, "429 before", "502 after", "reset before"],
    ids=["slow", "refusing", "faulty", "away"],
)
def test_every_record_is_logged_before_the_platform_answers_at_all(
    proxy: FaultyProxy,
    evaluations: Evaluations,
    monkeypatch: pytest.MonkeyPatch,
    how: Fault | None,
) -> None:
    monkeypatch.setattr(creation, "SETTLE_TIME", 0.2)
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", SEGMENT_BYTES)
    proxy.decide = closed = Closed(how)

    @eval_flow(
        environments=["toy"],
        evaluation_name=f"producer-{uuid4().hex[:8]}",
        credentials=proxy.credentials,
    )
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([episode(rewards=1.0) for _ in range(RECORDS // 2)])
        assert closed.uploads.wait(60)
        run.log_episodes([episode(rewards=1.0) for _ in range(RECORDS // 2)])
        assert run.pending_records["traces"] == RECORDS
        assert run.dropped_records == 0
        closed.gate.set()

    result = entrypoint()

    assert result.status == "COMPLETED"
    assert result.losses == {sink: {"failed": 0, "pending": 0} for sink in ("traces", "samples")}
    rows = evaluations.rows(result.evaluation_id)
    assert len(rows) == len({row["sample_id"] for row in rows}) == RECORDS
