"""The spool keeps every record on disk, once, until each sink has dealt with it."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from support import DATA, canonical, episodes_of, expected_rows, expected_summary

from prefect_prime.errors import RecordRejectedError, SpoolError
from prefect_prime.records import episode
from prefect_prime.spool import SINKS, Delivery, Spool, Tally
from prefect_prime.spool.requests import content_digest, plan_samples

SMALL = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "owner"


@pytest.fixture
def spool(folder: Path) -> Spool:
    return Spool(folder, segment_bytes=SMALL)


def hello(number: int = 0, text: str = "hello", **changes: Any) -> dict[str, Any]:
    made = episode([{"role": "user", "content": text}], rewards=1.0, example_id=number)
    return {**made, **changes}


def deliveries(spool: Spool, sink: Any) -> list[Delivery]:
    return spool.ledger.deliveries.pending(sink, 1000)


def rows_of(spool: Spool) -> list[dict[str, Any]]:
    return [
        row
        for delivery in deliveries(spool, "samples")
        for request in plan_samples(spool, delivery).requests
        for row in json.loads(request.body)["samples"]
    ]


def test_a_record_is_on_disk_when_add_returns(spool: Spool, folder: Path) -> None:
    spool.add(hello(text="on disk"))

    (segment,) = folder.glob("*.episode.jsonl")
    assert b"on disk" in segment.read_bytes()


def test_only_its_owner_may_read_it(spool: Spool, folder: Path) -> None:
    spool.add(hello())

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (segment,) = folder.glob("*.jsonl")
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600


def test_a_segment_closes_when_the_next_record_would_overfill_it(spool: Spool) -> None:
    for number in range(20):
        spool.add(hello(number))
    spool.seal()

    closed = deliveries(spool, "traces")
    assert len(closed) > 1
    assert all(delivery.bytes <= SMALL for delivery in closed)
    assert sum(delivery.records for delivery in closed) == 20


def test_a_record_larger_than_a_segment_has_one_of_its_own(spool: Spool) -> None:
    for text in ("small", "x" * 3 * SMALL, "small too"):
        spool.add(hello(text=text))
    spool.seal()

    assert [delivery.records for delivery in deliveries(spool, "traces")] == [1, 1, 1]


def test_the_payload_belongs_to_the_evaluation_and_the_rows_to_the_producer(
    spool: Spool,
) -> None:
    mine = {"id": "my-own-run", "type": "eval", "name": "nightly"}
    spool.add(hello(run=mine))
    spool.seal()
    (delivery,) = deliveries(spool, "traces")

    sent = json.loads(b"".join(spool.payload(delivery, 'ev"1\n')))
    (row,) = rows_of(spool)

    assert sent["run"] == {**mine, "id": 'ev"1\n'}
    assert sent["traces"][0]["run"]["id"] == 'ev"1\n'
    assert row["info"]["native_wrapper"]["run"] == mine
    assert "run" not in row["info"]["native_wrapper"]["traces"][0]


def test_the_same_bytes_have_the_same_digest_within_one_evaluation_and_sink() -> None:
    digests = {
        content_digest("a", "traces", b"x"),
        content_digest("a", "samples", b"x"),
        content_digest("b", "traces", b"x"),
        content_digest("a", "traces", b"y"),
    }
    assert len(digests) == 4
    assert content_digest("a", "traces", b"x") in digests


def test_the_same_record_is_kept_once(spool: Spool) -> None:
    record = hello()

    assert spool.add(record) is True
    assert spool.add(dict(record)) is False
    spool.seal()
    assert spool.add(record) is False
    assert spool.count("episode") == 1


def test_the_same_record_from_another_producer_run_is_the_same(spool: Spool) -> None:
    record = hello()

    assert spool.add({**record, "run": {"id": "first"}}) is True
    assert spool.add({**record, "run": {"id": "second"}}) is False


@pytest.mark.parametrize("sealed", [False, True])
def test_the_same_id_with_other_content_is_set_aside(spool: Spool, *, sealed: bool) -> None:
    record = hello()
    spool.add(record)
    if sealed:
        spool.seal()

    with pytest.raises(RecordRejectedError, match="Log a record once"):
        spool.add({**record, "ok": False})

    assert spool.rejected == 1
    ((kind, record_id, reason),) = spool.ledger.rejections()
    assert (kind, record_id) == ("episode", record["id"])
    assert "other content" in reason


def test_a_record_that_cannot_be_encoded_harms_no_neighbour(spool: Spool) -> None:
    spool.add(hello(1))
    with pytest.raises(RecordRejectedError, match="object"):
        spool.add(hello(2, info={"handle": object()}))
    spool.add(hello(3))
    spool.seal()

    assert spool.ledger.deliveries.tally("traces") == Tally(pending=2)
    assert spool.rejected == 1


def test_rollouts_of_an_example_are_numbered_across_segments(spool: Spool) -> None:
    for number in range(30):
        spool.add(hello(number % 2))
    spool.seal()

    rows = rows_of(spool)
    for example in (0, 1):
        numbers = [row["rollout_number"] for row in rows if row["example_id"] == example]
        assert numbers == list(range(1, 16))


def test_a_spool_that_is_opened_again_goes_on_where_it_was(folder: Path) -> None:
    episodes = episodes_of(DATA / "errors")
    first = Spool(folder, segment_bytes=SMALL)
    for record in episodes[:7]:
        first.add(record)
    first.close()

    second = Spool(folder, segment_bytes=SMALL)
    for record in episodes:  # a naive second attempt logs everything again
        second.add(record)
    second.seal()

    assert second.count("episode") == len(episodes)
    assert canonical(rows_of(second)) == canonical(expected_rows(DATA / "errors"))
    assert second.summary() == expected_summary(DATA / "errors")


def test_each_kind_goes_to_the_sinks_that_have_a_form_for_it(spool: Spool) -> None:
    spool.add(hello())
    spool.add(hello()["traces"][0])
    spool.add({"sample_id": "row-1", "reward": 1.0})
    spool.seal()

    assert {each.kind for each in deliveries(spool, "traces")} == {"episode", "trace"}
    assert {each.kind for each in deliveries(spool, "samples")} == {"episode", "sample"}
    assert spool.ledger.deliveries.tally("traces") == Tally(pending=2, skipped=1)
    assert spool.ledger.deliveries.tally("samples") == Tally(pending=2, skipped=1)


@pytest.mark.parametrize(
    ("setting", "traces", "expected"),
    [
        ("traces,samples", True, {"traces", "samples"}),
        ("traces,samples", False, {"samples"}),
        ("traces", True, {"traces"}),
        ("traces", False, set()),
        ("samples", True, {"samples"}),
        ("auto", True, {"traces"}),
        ("auto", False, {"samples"}),
    ],
)
def test_the_setting_decides_where_an_episode_goes(
    folder: Path, setting: Any, expected: set[str], *, traces: bool
) -> None:
    spool = Spool(folder, sinks=setting, traces=traces, segment_bytes=SMALL)
    spool.add(hello())
    spool.seal()

    assert {sink for sink in SINKS if deliveries(spool, sink)} == expected


@pytest.mark.parametrize(
    ("setting", "samples"), [("traces,samples", 2), ("auto", 2), ("traces", 0)]
)
def test_traces_that_turn_out_to_be_off_leave_the_samples_complete(
    folder: Path, setting: Any, samples: int
) -> None:
    spool = Spool(folder, sinks=setting, segment_bytes=SMALL)
    spool.add(hello(1))
    spool.seal()
    spool.traces_off()
    spool.add(hello(2))
    spool.seal()

    assert spool.ledger.deliveries.tally("traces") == Tally(skipped=2)
    assert spool.ledger.deliveries.tally("samples").pending == samples


def test_an_episode_without_traces_has_no_row_and_is_no_loss(spool: Spool) -> None:
    spool.add({"id": "empty", "traces": [], "ok": False, "errors": []})
    spool.seal()
    (delivery,) = deliveries(spool, "samples")

    plan = plan_samples(spool, delivery)

    assert (plan.requests, plan.without_row, plan.unfit) == ([], 1, {})
    assert spool.summary()["avg_error"] == 1.0


def test_rows_are_cut_into_requests_by_their_exact_size(spool: Spool) -> None:
    spool = Spool(spool.folder.with_name("large"), segment_bytes=1_000_000)
    for number in range(10):
        spool.add(hello(number, text="é" * 500))
    spool.seal()
    (delivery,) = deliveries(spool, "samples")
    one = len(plan_samples(spool, delivery).requests[0].body) // 10
    limit = 3 * one + 100

    plan = plan_samples(spool, delivery, limit)

    assert [len(request.completes) for request in plan.requests] == [3, 3, 3, 1]
    assert all(len(request.body) <= limit for request in plan.requests)
    assert sum(len(json.loads(request.body)["samples"]) for request in plan.requests) == 10


def test_a_row_that_fits_no_request_is_named_and_harms_no_neighbour(spool: Spool) -> None:
    spool = Spool(spool.folder.with_name("large"), segment_bytes=1_000_000)
    spool.add(hello(1))
    large = hello(2, text="x" * 10_000)
    spool.add(large)
    spool.add(hello(3))
    spool.seal()
    (delivery,) = deliveries(spool, "samples")

    plan = plan_samples(spool, delivery, limit=8_000)

    assert list(plan.unfit) == [large["id"]]
    assert "bytes, and the samples table takes 8,000" in plan.unfit[large["id"]]
    assert sum(len(request.completes) for request in plan.requests) == 2


def test_many_threads_lose_nothing_and_keep_their_own_order(spool: Spool) -> None:
    def log(thread: int) -> None:
        for number in range(50):
            spool.add(hello(thread, text=f"{thread}:{number}"))

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spool.seal()

    rows = rows_of(spool)
    assert len(rows) == 400
    for example in range(8):
        texts = [row["completion"][0]["content"] for row in rows if row["example_id"] == example]
        assert texts == [f"{example}:{number}" for number in range(50)]


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()

    with pytest.raises(SpoolError, match="PREFECT_PRIME_SPOOL_DIR"):
        Spool(in_the_way / "owner", segment_bytes=SMALL)
