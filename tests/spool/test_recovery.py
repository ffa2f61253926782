"""A process dies in the middle; the next one goes on as if it had logged everything itself."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import DATA, canonical, episodes_of, expected_rows, expected_summary

from prefect_prime.spool import Spool, Tally
from prefect_prime.spool.requests import plan_samples

RUN = DATA / "errors"
LARGE = 1_000_000

WRITER = """
import json, os, signal, sys
from pathlib import Path
from prefect_prime.spool import Spool
spool = Spool(Path(sys.argv[1]), segment_bytes=int(sys.argv[3]))
for line in Path(sys.argv[2]).read_bytes().splitlines()[: int(sys.argv[4])]:
    spool.add(json.loads(line))
os.kill(os.getpid(), signal.SIGKILL)
"""

INTERRUPTED_RECOVERY = """
import os, signal, sys
from pathlib import Path
from prefect_prime.spool import Spool
from prefect_prime.spool.segment import OpenSegment
append, left = OpenSegment.append, int(sys.argv[2])
def dying(*args, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    append(*args, **options)
OpenSegment.append = dying
if sys.argv[3] == "unlink":
    Path.unlink = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
Spool(Path(sys.argv[1]), segment_bytes=4096)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "owner"


@pytest.fixture
def dead(folder: Path, start: Callable[..., Any]) -> Callable[..., Path]:
    """A folder whose process logged some episodes of a real run, and was killed."""

    def make(count: int, segment_bytes: int = LARGE) -> Path:
        writer = start(WRITER, folder, RUN / "traces.jsonl", segment_bytes, count)
        output, _ = writer.communicate()
        assert writer.returncode == -9, output
        return folder

    return make


def rows_of(spool: Spool) -> list[dict[str, Any]]:
    return [
        row
        for delivery in spool.ledger.deliveries.pending("samples", 1000)
        for request in plan_samples(spool, delivery).requests
        for row in json.loads(request.body)["samples"]
    ]


def finish(folder: Path) -> Spool:
    """Open the spool and log the whole run, as a naive next attempt does."""
    spool = Spool(folder, segment_bytes=LARGE)
    for record in episodes_of(RUN):
        spool.add(record)
    spool.seal()
    return spool


def assert_whole(spool: Spool) -> None:
    assert spool.count("episode") == len(episodes_of(RUN))
    assert canonical(rows_of(spool)) == canonical(expected_rows(RUN))
    assert spool.summary() == expected_summary(RUN)
    assert spool.rejected == 0


@pytest.mark.parametrize("segment_bytes", [4096, LARGE], ids=["many segments", "one segment"])
def test_what_a_killed_process_had_logged_is_there_as_if_logged_now(
    folder: Path, dead: Callable[..., Path], segment_bytes: int
) -> None:
    dead(7, segment_bytes)

    spool = Spool(folder, segment_bytes=LARGE)
    assert spool.count("episode") == 7
    assert spool.ledger.deliveries.tally("samples") == Tally(pending=7)
    spool.close()

    assert_whole(finish(folder))


def test_a_torn_tail_is_cut_back_to_the_last_whole_line_and_counted(
    folder: Path, dead: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    (segment,) = dead(7).glob("*.episode.jsonl")
    with segment.open("ab") as file:
        file.write(b'{"id": "torn", "traces": [{"id"')

    with caplog.at_level(logging.WARNING):
        spool = Spool(folder, segment_bytes=LARGE)

    assert (spool.count("episode"), spool.torn, spool.rejected) == (7, 1, 0)
    assert "torn by the death of its writer" in caplog.text
    spool.close()
    spool = finish(folder)
    assert_whole(spool)
    assert spool.torn == 1


def test_a_segment_that_is_all_tail_is_no_record(folder: Path, dead: Callable[..., Path]) -> None:
    dead(0)
    (folder / "000001.episode.jsonl").write_bytes(b'{"id"')
    (folder / "000002.episode.jsonl").touch()

    spool = Spool(folder, segment_bytes=LARGE)

    assert (spool.count("episode"), spool.torn) == (0, 1)
    assert list(folder.glob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("after", "where"), [(0, "append"), (3, "append"), (6, "append"), (99, "unlink")]
)
def test_recovery_may_itself_be_killed_as_often_as_it_likes(
    folder: Path, dead: Callable[..., Path], start: Callable[..., Any], after: int, where: str
) -> None:
    (segment,) = dead(7).glob("*.episode.jsonl")
    with segment.open("ab") as file:
        file.write(b"not a record\n")
    for _ in range(2):
        recovery = start(INTERRUPTED_RECOVERY, folder, after, where)
        output, _ = recovery.communicate()
        assert recovery.returncode == -9, output

    spool = finish(folder)

    assert spool.count("episode") == len(episodes_of(RUN))
    assert canonical(rows_of(spool)) == canonical(expected_rows(RUN))
    assert spool.summary() == expected_summary(RUN)
    assert spool.rejected == 1
    assert len(list(folder.glob("*.jsonl"))) == len(spool.ledger.segments())


@pytest.mark.parametrize(
    "damage", [b"\0" * 40, b'{"id": "half', b"[1, 2]", b"null", b'{"traces": []}', b"\xff"]
)
def test_damage_in_the_middle_of_a_segment_costs_that_line_only(
    folder: Path, dead: Callable[..., Path], damage: bytes
) -> None:
    (segment,) = dead(7).glob("*.episode.jsonl")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], damage + b"\n", *lines[4:]]))

    spool = Spool(folder, segment_bytes=LARGE)

    assert (spool.count("episode"), spool.rejected) == (6, 1)
    ((kind, _, reason),) = spool.ledger.rejections()
    assert kind == "episode"
    assert reason.startswith("unreadable after a crash")
    kept = {row["sample_id"] for row in rows_of(spool)}
    assert kept == {each["id"] for each in episodes_of(RUN)[:7]} - {episodes_of(RUN)[3]["id"]}
