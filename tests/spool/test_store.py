"""The store: a spool that is over goes at once, and one that is waited for is a new one."""

import shutil
import threading
from pathlib import Path

import pytest

from prefect_prime.records import episode
from prefect_prime.spool import Spool, store


def test_a_spool_whose_removal_is_cut_short_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.owner_folder(tmp_path / "spool", "run")
    spool = Spool(folder, segment_bytes=1000)
    spool.add(episode([{"role": "user", "content": "?"}], rewards=1.0, example_id=1))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        spool.close(remove=True)
    monkeypatch.undo()

    assert not folder.exists()
    assert list(store.spools(tmp_path / "spool")) == []
    store.sweep_out(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_who_waited_for_a_spool_that_was_removed_begins_a_new_one(tmp_path: Path) -> None:
    folder = store.owner_folder(tmp_path / "spool", "run")
    first = Spool(folder, segment_bytes=1000)
    first.add(episode([{"role": "user", "content": "?"}], rewards=1.0, example_id=1))
    got: list[Spool] = []
    waiting = threading.Thread(
        target=lambda: got.append(Spool(folder, segment_bytes=1000, patience=20.0))
    )
    waiting.start()
    first.close(remove=True)
    waiting.join()

    (second,) = got
    assert second.count("episode") == 0
    second.add(episode([{"role": "user", "content": "?"}], rewards=1.0, example_id=1))
    second.close()
    assert (folder / "000001.episode.jsonl").exists()
