"""Who holds the lease on a folder is alive, and nobody else may write there."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import wait_until

from prefect_prime.errors import SpoolError
from prefect_prime.spool import Spool
from prefect_prime.spool.lease import Lease

HOLDER = """
import sys
from pathlib import Path
from prefect_prime.spool.lease import Lease
lease = Lease.take(Path(sys.argv[1]))
print("none" if lease is None else "held", flush=True)
sys.stdin.read()
"""

PARENT_OF_A_FORK = """
import os, sys
from pathlib import Path
from prefect_prime.spool.lease import Lease
lease = Lease.take(Path(sys.argv[1]))
if os.fork() == 0:
    lease.release()
    print(os.getpid(), "refused" if Lease.take(Path(sys.argv[1])) is None else "taken", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def line_of(process: Any) -> str:
    line: str = process.stdout.readline()
    return line.strip()


def released(lease: Lease | None) -> bool:
    if lease is None:
        return False
    lease.release()
    return True


def test_one_process_holds_it_and_another_is_refused(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    assert line_of(start(HOLDER, tmp_path)) == "held"

    assert Lease.take(tmp_path) is None
    assert line_of(start(HOLDER, tmp_path)) == "none"


def test_sigkill_gives_it_back(tmp_path: Path, start: Callable[..., Any]) -> None:
    holder = start(HOLDER, tmp_path)
    assert line_of(holder) == "held"

    holder.kill()
    holder.wait()

    assert released(Lease.take(tmp_path))


def test_what_was_refused_takes_nothing_from_who_holds_it(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    lease = Lease.take(tmp_path)
    assert lease is not None
    assert Lease.take(tmp_path) is None  # opens and closes no descriptor of ours

    assert line_of(start(HOLDER, tmp_path)) == "none"
    lease.release()
    assert line_of(start(HOLDER, tmp_path)) == "held"


def test_a_second_thread_of_the_same_process_is_refused(tmp_path: Path) -> None:
    lease = Lease.take(tmp_path)
    assert lease is not None
    taken: list[Lease | None] = []
    thread = threading.Thread(target=lambda: taken.append(Lease.take(tmp_path)))
    thread.start()
    thread.join()

    assert taken == [None]
    lease.release()
    assert released(Lease.take(tmp_path))


def test_a_fork_inherits_nothing_and_gives_nothing_away(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    parent = start(PARENT_OF_A_FORK, tmp_path)
    child, verdict = line_of(parent).split()
    assert verdict == "refused"
    assert Lease.take(tmp_path) is None

    parent.kill()  # the child lives on
    parent.wait()

    assert released(wait_until(lambda: Lease.take(tmp_path)))
    os.kill(int(child), 0)


def test_a_spool_in_use_says_so_and_is_free_afterwards(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "owner", segment_bytes=4096)

    with pytest.raises(SpoolError, match="another process is still running this eval"):
        Spool(tmp_path / "owner", segment_bytes=4096)

    spool.close()
    Spool(tmp_path / "owner", segment_bytes=4096).close()


def test_a_spool_that_does_not_open_keeps_no_lease(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    (folder / "ledger.sqlite3").mkdir(parents=True)
    with pytest.raises(SpoolError, match="PREFECT_PRIME_SPOOL_DIR"):
        Spool(folder, segment_bytes=4096)

    assert released(Lease.take(folder))
