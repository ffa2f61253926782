"""Ids that are there twice are found here: Prime Traces refuses a whole upload for one."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from prefect_prime.errors import RecordRejectedError
from prefect_prime.spool import Spool
from prefect_prime.spool.seen import Seen


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool" / "owner", segment_bytes=1_000_000)


def trace(identity: Any) -> dict[str, Any]:
    return {"id": identity, "nodes": [], "info": {"n": 1}}


def episode(identity: str, *traces: Any) -> dict[str, Any]:
    return {"id": identity, "ok": True, "traces": [trace(each) for each in traces]}


def refusal(spool: Spool, record: dict[str, Any]) -> str:
    with pytest.raises(RecordRejectedError) as caught:
        spool.add(record)
    kind, identity, reason = spool.ledger.rejections()[-1]
    assert (kind, identity) == ("episode" if "traces" in record else "trace", record["id"])
    assert reason == str(caught.value)
    return reason


def test_one_trace_id_twice_in_an_episode(spool: Spool) -> None:
    reason = refusal(spool, episode("e", "t", "u", "t"))

    assert reason == "trace id 't' is twice in episode 'e'"
    assert spool.add(episode("e", "t", "u"))


@pytest.mark.parametrize("between", ["nothing", "sealed", "reopened"])
def test_a_trace_id_of_an_earlier_episode(spool: Spool, between: str) -> None:
    spool.add(episode("first", "s", "t"))
    spool = settled(spool, between)

    reason = refusal(spool, episode("second", "u", "t"))

    assert reason.startswith("trace id 't' is already in episode 'first'; that one stays")
    assert spool.add(episode("third", "u"))
    assert (spool.count("episode"), spool.rejected) == (2, 1)


@pytest.mark.parametrize("between", ["nothing", "sealed", "reopened"])
def test_a_bare_trace_with_the_id_of_an_episodes_trace(spool: Spool, between: str) -> None:
    spool.add(episode("first", "t"))
    spool = settled(spool, between)

    assert "trace id 't' is already in episode 'first'" in refusal(spool, trace("t"))


@pytest.mark.parametrize("between", ["nothing", "sealed", "reopened"])
def test_an_episode_with_the_trace_id_of_a_bare_trace(spool: Spool, between: str) -> None:
    spool.add(trace("t"))
    spool = settled(spool, between)

    assert "trace id 't' is already logged by itself" in refusal(spool, episode("e", "t"))


@pytest.mark.parametrize("between", ["nothing", "sealed", "reopened"])
def test_the_same_episode_again_is_no_collision_with_itself(spool: Spool, between: str) -> None:
    spool.add(episode("e", "t"))
    spool = settled(spool, between)

    assert not spool.add(episode("e", "t"))
    assert spool.rejected == 0


def test_what_a_killed_process_left_collides_too(spool: Spool) -> None:
    spool.add(episode("first", "t"))
    spool._lease.release()  # as a death does

    reopened = Spool(spool.folder, segment_bytes=1_000_000)

    assert "already in episode 'first'" in refusal(reopened, episode("second", "t"))


@pytest.mark.parametrize(
    "identity", ["x" * 100_000, "\0", "a\nb", "\ud800", "🧪/../%2F", "' OR 1--"]
)
def test_an_id_may_be_of_any_length_and_alphabet(spool: Spool, identity: str) -> None:
    spool.add(episode(identity, identity))
    spool = settled(spool, "sealed")

    assert not spool.add(episode(identity, identity))
    for again in (episode(identity, "other"), episode("other", identity)):
        with pytest.raises(RecordRejectedError) as caught:
            spool.add(again)
        reason = str(caught.value)
        assert len(reason.encode()) < 500
        assert reason.isprintable()
    [[*_, kept], _] = spool.ledger.rejections()
    assert kept.isprintable()


def test_an_episode_may_have_more_traces_than_are_asked_for_at_once(spool: Spool) -> None:
    spool.add(episode("first", *map(str, range(5_000))))
    spool = settled(spool, "sealed")

    many = [f"other-{number}" for number in range(5_000)]
    assert "trace id '4999'" in refusal(spool, episode("second", *many, "4999"))


def test_traces_without_an_id_are_left_to_the_service(spool: Spool) -> None:
    assert spool.add({"id": "e", "traces": [{"nodes": []}, {"id": 5}, {"id": 5}]})


def test_a_ledger_without_the_table_is_brought_up_to_date(spool: Spool) -> None:
    spool.add(episode("first", "t"))
    spool.close()
    connection = sqlite3.connect(spool.folder / "ledger.sqlite3")
    connection.execute("DROP TABLE members")
    connection.close()

    reopened = Spool(spool.folder, segment_bytes=1_000_000)

    assert reopened.add(episode("second", "u"))


def test_new_ids_need_no_query_and_known_ones_are_never_missed() -> None:
    seen = Seen()
    for number in range(20_000):
        seen.add(f"id-{number}")

    assert all(f"id-{number}" in seen for number in range(20_000))
    assert sum(f"new-{number}" in seen for number in range(20_000)) < 20


def settled(spool: Spool, between: str) -> Spool:
    if between == "sealed":
        spool.seal()
    elif between == "reopened":
        spool.close()
        return Spool(spool.folder, segment_bytes=1_000_000)
    return spool
