"""The key is in nothing that is written, whatever happens to the run."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from pydantic import SecretStr
from support import DATA, episodes_of, wait_until

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")
KEY = "pk-never-to-be-seen-51f7"


def test_the_key_is_in_no_file_log_or_exception(
    own_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def attempt(credentials: Any, *, fails: bool) -> None:
        @eval_flow(
            environments=["toy"],
            credentials=credentials,
            on_error="raise",
            persist_result=True,
            retries=1,
        )
        def entrypoint() -> None:
            current_run().log_episodes(episodes_of(DATA / "clean"))
            seen.append(repr(current_run()))
            if fails:
                raise ValueError("the eval itself fails")

        state = entrypoint(return_state=True)
        seen.extend((repr(state), repr(state.data), repr(entrypoint.options)))

    for mode in ("enabled", "forbidden"):
        with LocalPlatform(api_key=KEY, traces=mode) as platform:
            attempt(platform.credentials, fails=mode == "enabled")
            attempt(platform.credentials, fails=False)
    gone = platform.credentials
    attempt(PrimeCredentials(api_key=SecretStr(KEY), base_url=gone.base_url), fails=False)
    with LocalPlatform(api_key="another") as platform:  # the key is wrong there
        wrong = Credentials(
            api_key=KEY, base_url=platform.url, traces_url=platform.url, team_id="a-team"
        )
        attempt(wrong, fails=False)

    files = [*own_home.rglob("*"), *Path(os.environ["PREFECT_HOME"]).rglob("*")]
    read = [file for file in files if file.is_file()]
    assert any("/storage/" in str(file) for file in read)
    assert any(file.name == "ledger.sqlite3" for file in read)
    assert [file for file in read if KEY.encode() in file.read_bytes()] == []
    assert KEY not in caplog.text
    assert [text for text in seen if KEY in text] == []

    def with_the_logs_of_these_runs() -> str | None:
        dump = "\n".join(prefects_database())
        return dump if "not stored by the traces sink" in dump else None

    assert KEY not in wait_until(with_the_logs_of_these_runs)


def prefects_database() -> Iterator[str]:
    """Every row of every table."""
    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    with closing(sqlite3.connect(url.rpartition("sqlite+aiosqlite:///")[2])) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            yield from map(repr, database.execute(f'SELECT * FROM "{table}"'))  # noqa: S608 - names of the schema
