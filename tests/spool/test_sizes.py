"""Sizes: one huge record among small ones, very many tiny ones, and limits to the byte."""

from pathlib import Path
from typing import Any

import pytest
from prime_traces import MAX_LINE_BYTES, LineFormat

from prefect_prime.encoding import encode
from prefect_prime.errors import TraceTooLargeError
from prefect_prime.projection import MAX_REQUEST_BYTES
from prefect_prime.spool import Delivery, Spool
from prefect_prime.spool.requests import SamplesPlan, plan_samples
from prefect_prime.tasks import TracesUpload

MIB = 1024 * 1024


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool" / "owner", segment_bytes=8 * MIB)


def episode(identity: str, *sizes: int) -> dict[str, Any]:
    """An episode whose traces hold texts of the given sizes."""
    traces = [
        {"id": f"{identity}-{number}", "nodes": [], "info": {"text": "x" * size}}
        for number, size in enumerate(sizes)
    ]
    return {"id": identity, "ok": True, "traces": traces}


def plans(spool: Spool) -> list[SamplesPlan]:
    spool.seal()
    return [plan_samples(spool, each) for each in deliveries(spool, "samples")]


def deliveries(spool: Spool, sink: Any) -> list[Delivery]:
    return spool.ledger.deliveries.pending(sink, 1000)


def completed(spool: Spool) -> list[str]:
    return [
        each for plan in plans(spool) for request in plan.requests for each in request.completes
    ]


def upload(data: bytes, records: int) -> TracesUpload:
    return TracesUpload(
        "x",
        lambda: [data],
        "key",
        records=records,
        line_format=LineFormat.EPISODE,
        context={},
        first=True,
    )


def test_a_huge_episode_among_small_ones_is_alone_in_its_segment_and_is_the_one_named(
    spool: Spool,
) -> None:
    for number in range(10):
        spool.add(episode(f"before-{number}", 100))
    spool.add(episode("screenshots", 51 * MIB))
    for number in range(10):
        spool.add(episode(f"after-{number}", 100))

    unfit = {identity: why for plan in plans(spool) for identity, why in plan.unfit.items()}

    assert [each.records for each in deliveries(spool, "traces")] == [10, 1, 10]
    assert unfit == {
        "screenshots": "too large: trace 'screenshots-0' needs a request of 51.0 MiB, and the"
        " samples table takes 25 MiB"
    }
    assert len(completed(spool)) == 20


def test_a_huge_episode_of_traces_that_fit_has_a_row_for_each(spool: Spool) -> None:
    spool.add(episode("e", *[14_000] * 5))
    spool.seal()

    [plan] = [plan_samples(spool, each, 25_000) for each in deliveries(spool, "samples")]

    assert plan.unfit == {}
    assert [len(request.owners) for request in plan.requests] == [1] * 5
    assert [request.completes for request in plan.requests] == [(), (), (), (), ("e",)]


def test_a_line_that_prime_traces_never_takes_is_named_unsent() -> None:
    small, large = b'{"id": "e"}\n', b"x" * (70 * MIB) + b"\n"

    with pytest.raises(TraceTooLargeError, match=f"{70 * MIB}.*{MAX_LINE_BYTES}") as caught:
        upload(small + large, 2).packed(range(2))
    assert caught.value.line_number == 2
    upload(small + large, 2).packed(range(1))


@pytest.mark.parametrize("extra", [0, 1])
def test_a_line_may_have_64_mib_to_the_byte(extra: int) -> None:
    one = upload(b"x" * (MAX_LINE_BYTES + extra) + b"\n", 1)

    if extra:
        with pytest.raises(TraceTooLargeError):
            one.packed(range(1))
    else:
        one.packed(range(1))


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_row_may_have_what_a_request_holds_to_the_byte(spool: Spool, extra: int) -> None:
    empty = len(encode({"sample_id": "s", "text": ""})) - 1 + len(b'{"samples":[]}')
    spool.add({"sample_id": "s", "text": "x" * (MAX_REQUEST_BYTES - empty + extra)})

    [plan] = plans(spool)

    if extra > 0:
        assert plan.unfit == {
            "s": "too large: its row needs a request of 26,214,401 bytes, and the samples table"
            " takes 26,214,400"
        }
    else:
        assert [len(request.body) for request in plan.requests] == [MAX_REQUEST_BYTES + extra]
        assert plan.unfit == {}


@pytest.mark.parametrize("extra", [0, 1])
def test_a_segment_may_be_filled_to_the_byte(tmp_path: Path, extra: int) -> None:
    line = len(encode({"sample_id": "a", "text": ""}))
    spool = Spool(tmp_path / "exact", segment_bytes=10_000)

    spool.add({"sample_id": "a", "text": "x" * 3000})
    spool.add({"sample_id": "b", "text": "x" * (7000 - 2 * line + extra)})
    spool.seal()

    sizes = [each.bytes for each in deliveries(spool, "samples")]
    assert sizes == ([10_000] if not extra else [3000 + line, 7001 - line])


def test_tiny_records_by_the_ten_thousand_are_all_there_in_few_requests(spool: Spool) -> None:
    count = 10_000
    for number in range(count):
        spool.add({"id": f"e{number}", "ok": True, "traces": [{"id": f"t{number}"}]})

    stored = completed(spool)

    assert stored == [f"e{number}" for number in range(count)]
    assert len(deliveries(spool, "traces")) <= 2


def test_what_cannot_be_projected_costs_its_own_row_alone(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for identity in ("before", "odd", "after"):
        spool.add(episode(identity, 10))

    def projected(record: dict[str, Any], *arguments: Any) -> Any:
        if record["id"] == "odd":
            raise ZeroDivisionError("a bug")
        return whole(record, *arguments)

    from prefect_prime.spool import requests  # noqa: PLC0415 - the name that is patched

    whole = requests.sample_rows
    monkeypatch.setattr(requests, "sample_rows", projected)

    [plan] = plans(spool)
    assert plan.unfit == {"odd": "has no sample row: ZeroDivisionError: a bug"}
    assert [request.completes for request in plan.requests] == [("before", "after")]
