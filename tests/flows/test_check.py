"""``python -m prefect_prime.check`` tells, before an eval starts, whether it could be tracked."""

import io
import os
import pty
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.flows import current_run, eval_flow, readiness
from prefect_prime.flows.check import main
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")
KEY = "pk-never-to-be-seen-51f7"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPlatform]:
    with LocalPlatform(api_key=KEY) as running:
        yield running


@pytest.fixture
def account(local: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The environment of somebody whose evals are tracked."""
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    monkeypatch.setenv("PRIME_API_BASE_URL", local.url)
    monkeypatch.setenv("PRIME_TRACES_URL", local.url)
    return local.credentials


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Runs it; the exit status, and the lines that a person reads."""

    def run(*arguments: str) -> tuple[int, list[str]]:
        status = main(arguments)
        output = capsys.readouterr()
        assert KEY not in output.out + output.err
        return status, output.out.splitlines()

    return run


@pytest.fixture
def closed_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def failures(lines: list[str]) -> dict[str, str]:
    """Each line with a cross, by its name, together with the advice below it."""
    found = {}
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("✗"):
            name, text = line[2:15].strip(), line[15:]
            found[name] = f"{text} {below.strip()}"
    return found


# -- as a person runs it -----------------------------------------------------------------


def test_everything_in_order_is_told_with_where_it_comes_from(
    account: Credentials, own_home: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect_prime.check"],
        env={
            **os.environ,
            "PREFECT_API_URL": PREFECT_API_URL.value(),
            "PRIME_TEAM_ID": "our-team",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line[:15].rstrip() for line in lines] == [
        "✓ Prefect API",
        "✓ API key",
        "✓ Team",
        "✓ Platform",
        "✓ Prime Traces",
        "✓ Evaluations",
        "✓ Traces",
        "✓ Spool",
        "✓ Disk space",
        "✓ Left over",
        "Ready.",
    ]
    text = [line[15:] for line in lines]
    assert PREFECT_API_URL.value() in text[0]
    assert "profile" in text[0]
    assert text[1] == "set (PRIME_API_KEY)"
    assert text[2] == "our-team (PRIME_TEAM_ID)"
    assert text[3] == f"{account.base_url} (PRIME_API_BASE_URL)"
    assert text[4] == f"{account.base_url} (PRIME_TRACES_URL)"
    assert str(own_home / ".prefect-prime" / "spool") in text[7]
    assert "GiB free" in text[8]
    assert KEY not in done.stdout


def test_an_output_that_can_show_no_tick_gets_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    assert main([]) == 1
    sys.stdout.flush()
    assert b"x API key" in output.getvalue()
    assert b"+ Spool" in output.getvalue()


def test_a_terminal_gets_colours(
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main([]) == 0
    shown = b""
    while chunk := read_terminal(ours):
        shown += chunk
    os.close(ours)
    assert "\x1b[32m✓\x1b[0m" in shown.decode()


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end is closed
        return b""


# -- credentials -------------------------------------------------------------------------


def test_no_key_is_a_cross_that_says_where_one_is_looked_for(check: Any) -> None:
    status, lines = check()
    assert status == 1
    assert "PRIME_API_KEY" in failures(lines)["API key"]
    assert "--credentials" in failures(lines)["API key"]
    assert any(line.startswith("✓ Spool") for line in lines)


def test_a_file_of_the_config_that_cannot_be_read_is_told(check: Any, own_home: Path) -> None:
    (own_home / ".prime").mkdir()
    (own_home / ".prime" / "config.json").write_text("[]")
    _, lines = check()
    (told,) = [line for line in lines if line.startswith("! Config file")]
    assert "config.json holds a JSON list" in told


def test_the_config_file_is_a_source(check: Any, own_home: Path, local: LocalPlatform) -> None:
    (own_home / ".prime").mkdir()
    file = own_home / ".prime" / "config.json"
    file.write_text(
        f'{{"api_key": "{KEY}", "base_url": "{local.url}", "traces_url": "{local.url}"}}'
    )
    status, lines = check()
    assert status == 0
    assert f"✓ API key      set ({file})" in lines
    assert f"✓ Platform     {local.url} ({file})" in lines
    assert "✓ Team         none, your personal account (default)" in lines


def test_a_setting_that_cannot_be_is_a_cross_that_names_it(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIME_API_KEY", f"{KEY}\u00e4")
    status, lines = check()
    assert status == 1
    assert failures(lines)["Settings"].startswith("PRIME_API_KEY: holds")


def test_a_block_is_the_only_source_when_it_is_named(
    check: Any, account: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    PrimeCredentials(**dict(account)).save("for-the-check", overwrite=True)
    monkeypatch.setenv("PRIME_API_KEY", "another")
    status, lines = check("--credentials", "for-the-check")
    assert status == 0
    assert "✓ API key      set (block 'for-the-check')" in lines


def test_a_block_that_is_not_there_is_a_cross(check: Any) -> None:
    status, lines = check("--credentials", "not-there")
    assert status == 1
    assert "'not-there'" in failures(lines)["API key"]


def test_a_key_in_the_place_of_a_block_s_name_is_not_repeated(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
) -> None:
    status, lines = check("--credentials", KEY)
    assert status == 1
    assert "PRIME_API_KEY" in failures(lines)["API key"]


# -- the services ------------------------------------------------------------------------


def test_a_wrong_key_is_a_cross_for_both_services(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIME_API_KEY", "wrong")
    status, lines = check()
    assert status == 1
    assert set(failures(lines)) == {"Evaluations", "Traces"}
    assert all("not accepted" in each for each in failures(lines).values())


def test_no_traces_url_for_a_platform_of_one_s_own_is_a_cross(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PRIME_TRACES_URL")
    status, lines = check()
    assert status == 1
    assert "PRIME_TRACES_URL" in failures(lines)["Traces"]
    assert "PREFECT_PRIME_SINKS=samples" in failures(lines)["Traces"]


@pytest.mark.parametrize(
    ("variable", "value"), [("PREFECT_PRIME_SINKS", "samples"), ("PRIME_TRACES_OPT_OUT", "1")]
)
def test_traces_that_are_not_wanted_are_not_missed(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
) -> None:
    monkeypatch.delenv("PRIME_TRACES_URL")
    monkeypatch.setenv(variable, value)
    status, lines = check()
    assert status == 0
    (told,) = [line for line in lines if line.startswith("✓ Traces")]
    assert variable in told


@pytest.mark.parametrize(("mode", "advice"), [("not_enabled", "enabled"), ("forbidden", "scope")])
def test_an_account_without_traces_is_a_cross(
    check: Any, monkeypatch: pytest.MonkeyPatch, mode: Any, advice: str
) -> None:
    with LocalPlatform(api_key=KEY, traces=mode) as platform:
        for name in ("PRIME_API_BASE_URL", "PRIME_TRACES_URL"):
            monkeypatch.setenv(name, platform.url)
        monkeypatch.setenv("PRIME_API_KEY", KEY)
        status, lines = check()
        assert status == 1
        assert list(failures(lines)) == ["Traces"]
        assert advice in failures(lines)["Traces"]
        monkeypatch.setenv("PREFECT_PRIME_SINKS", "auto")
        assert check()[0] == (0 if mode == "not_enabled" else 1)


def test_a_service_that_is_not_there_is_a_cross_that_names_its_url(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
    closed_url: str,
) -> None:
    monkeypatch.setenv("PRIME_API_BASE_URL", closed_url)
    monkeypatch.setenv("PRIME_TRACES_URL", closed_url)
    status, lines = check()
    assert status == 1
    assert set(failures(lines)) == {"Evaluations", "Traces"}
    for told in failures(lines).values():
        assert closed_url in told
        assert "HTTPS_PROXY" in told


def test_only_reads_are_sent(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalPlatform(api_key=KEY) as platform:
        for name in ("PRIME_API_BASE_URL", "PRIME_TRACES_URL"):
            monkeypatch.setenv(name, platform.url)
        monkeypatch.setenv("PRIME_API_KEY", KEY)
        assert check()[0] == 0
        sent = [(each.method, each.path) for each in platform.requests]
    assert sent == [("GET", "/api/v1/evaluations/"), ("GET", "/api/v1/traces")]


# -- Prefect -----------------------------------------------------------------------------


def test_a_prefect_api_that_does_not_answer_is_a_cross(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    closed_url: str,
) -> None:
    with temporary_settings({PREFECT_API_URL: f"{closed_url}/api"}):
        status, lines = check()
        assert status == 1
        assert list(failures(lines)) == ["Prefect API"]
        assert closed_url in failures(lines)["Prefect API"]
        assert "prefect server start" in failures(lines)["Prefect API"]
        _, lines = check("--credentials", "a-block")
        assert "not loaded" in failures(lines)["API key"]


def test_an_address_that_is_no_prefect_api_is_a_cross(
    check: Any,
    account: Credentials,
) -> None:
    with temporary_settings({PREFECT_API_URL: account.base_url}):
        _, lines = check()
    assert "PREFECT_API_URL" in failures(lines)["Prefect API"]


def test_a_server_per_process_is_told_and_not_started(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
) -> None:
    with temporary_settings(
        {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}, restore_defaults={PREFECT_API_URL}
    ):
        status, lines = check()
    assert status == 0
    assert lines[0].startswith("! Prefect API  no PREFECT_API_URL")


# -- the spool ---------------------------------------------------------------------------


def test_a_spool_that_cannot_be_written_is_a_cross(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", str(tmp_path / "file" / "spool"))
    status, lines = check()
    assert status == 1
    assert list(failures(lines)) == ["Spool"]
    assert "PREFECT_PRIME_SPOOL_DIR" in failures(lines)["Spool"]


def test_a_disk_that_is_nearly_full_is_a_cross(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = SimpleNamespace(free=readiness.MIN_FREE - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)  # no disk is to be filled for this
    status, lines = check()
    assert status == 1
    assert list(failures(lines)) == ["Disk space"]


def test_nothing_is_left_behind(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    own_home: Path,
) -> None:
    assert check()[0] == 0
    assert list(own_home.iterdir()) == []


def test_what_an_eval_left_to_send_is_told_with_what_sends_it(
    check: Any,
    account: Credentials,  # noqa: ARG001 - the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @eval_flow(environments=["toy"])
    def entrypoint() -> None:
        current_run().log_episodes([episode([{"role": "user", "content": "?"}], example_id=1)])

    monkeypatch.setenv("PRIME_RUNS_MODE", "offline")
    entrypoint()
    status, lines = check()
    assert status == 0
    assert any(line.startswith("! Mode         offline (PRIME_RUNS_MODE)") for line in lines)
    place = [number for number, line in enumerate(lines) if line.startswith("! Left over")]
    assert "1 with records to send" in lines[place[0]]
    assert "prefect_prime.flows.reconcile" in lines[place[0] + 1]
