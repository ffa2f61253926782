"""A disk that is full, a folder that nobody may write, a machine that may die."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_prime.errors import SpoolError
from prefect_prime.records import episode
from prefect_prime.spool import Spool, store

#: Segments no larger than this are full after a few records.
SMALL = 4096


def hello(number: int = 0) -> dict[str, Any]:
    return episode([{"role": "user", "content": "hello"}], rewards=1.0, example_id=number)


#: A full disk without a disk: the kernel refuses this process files beyond a size. Python ignores
#: the signal that comes with it, and sees an error as of a full disk.
LIMITED = """
import logging, resource, sys
from pathlib import Path
from prefect_prime.errors import SpoolError
from prefect_prime.records import episode
from prefect_prime.spool import Spool

logging.basicConfig(format="%(message)s", stream=sys.stdout)
folder, what = Path(sys.argv[1]), sys.argv[2]
def hello(number):
    return episode([{"role": "user", "content": "hello " * 50}], rewards=1.0, example_id=number)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

if what == "open":
    limit(0)
    try:
        Spool(folder, segment_bytes=1 << 20)
    except SpoolError as error:
        print(error)
    limit(resource.RLIM_INFINITY)
    Spool(folder, segment_bytes=1 << 20).close()
    print("opened")
else:
    spool = Spool(folder, segment_bytes=1 << 20 if what == "segment" else 8192)
    spool.add(hello(0))
    limit(40_000 if what == "segment" else 8_000 + 100)
    kept, lost = 1, 0
    for number in range(1, 60):
        try:
            kept += spool.add(hello(number))
        except SpoolError as error:
            lost += 1
            reason = error
    print("lost some" if lost else "lost none", reason if lost else "")
    limit(resource.RLIM_INFINITY)
    kept += spool.add(hello(60))
    assert spool.seal()
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert kept == spool.count("episode") == len(lines), (kept, spool.count("episode"), len(lines))
    print("whole")
"""


def test_a_full_disk_is_said_when_the_spool_is_opened_and_keeps_nothing_locked(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    output, _ = start(LIMITED, tmp_path / "owner", "open").communicate()

    refused, opened = output.splitlines()
    assert refused.startswith(f"cannot open the spool {tmp_path / 'owner'}: ")
    assert refused.endswith("that this process may write, on a disk that has room.")
    assert opened == "opened"


def test_a_segment_that_cannot_grow_loses_whole_records_only(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    output, _ = start(LIMITED, tmp_path / "owner", "segment").communicate()

    assert "lost some cannot write to the segment" in output
    assert output.endswith("whole\n")


def test_a_ledger_that_cannot_grow_costs_no_record(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    output, _ = start(LIMITED, tmp_path / "owner", "ledger").communicate()

    assert "nothing can be sent for now" in output
    assert output.endswith("whole\n")


@pytest.mark.parametrize("place", ["/proc/spool/run/owner", "file/run/owner"])
def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="PREFECT_PRIME_SPOOL_DIR"):
        Spool(tmp_path / place, segment_bytes=SMALL)


def test_everything_in_it_is_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = tmp_path / "home" / ".prefect-prime" / "spool"
        store.store_id(root)
        spool = Spool(store.owner_folder(root, "run"), segment_bytes=SMALL)
        for number in range(10):
            spool.add(hello(number))
    finally:
        os.umask(before)

    modes = {
        path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "home").rglob("*")
    }
    assert {mode for path, mode in modes.items() if (tmp_path / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (tmp_path / path).is_file()} == {0o600}
    assert any(path.name == "ledger.sqlite3-wal" for path in modes)


def test_a_folder_of_somebody_s_own_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)

    Spool(tmp_path / "shared" / "run" / "owner", segment_bytes=SMALL)

    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


@pytest.mark.parametrize("fsync", [True, False])
def test_on_demand_every_record_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fsync: bool
) -> None:
    forced: list[str] = []
    really = os.fsync

    def noting(descriptor: int) -> None:
        forced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    spool = Spool(tmp_path / "owner", segment_bytes=1_000_000, fsync=fsync)
    for number in range(3):
        spool.add(hello(number))

    segment = ["000001.episode.jsonl"] * 3
    assert forced == (["owner", *segment] if fsync else [])
    ((level,),) = spool.ledger.rows("PRAGMA synchronous")
    assert level == (2 if fsync else 1)
