"""Credentials in every form that a person may give them in, the wrong ones included."""

import logging
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from pydantic import SecretStr

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.flows.evaluation_facts import EvaluationFacts
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode
from prefect_prime.settings import load_settings
from prefect_prime.spool import Ledger, store

pytestmark = pytest.mark.usefixtures("prefect_server")
UNSAVED = "never saved as a block"


def evaluate(credentials: Any) -> None:
    @eval_flow(environments=["toy"], credentials=credentials)
    def entrypoint() -> None:
        current_run().log_episodes([episode(messages=[], rewards=0.5)])

    entrypoint()


def block_of(credentials: Credentials) -> PrimeCredentials:
    return PrimeCredentials(**dict(credentials))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if UNSAVED in each.message]


def test_credentials_that_no_other_process_can_load_are_warned_about_once(
    platform: LocalPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(block_of(platform.credentials))
    (told,) = warnings_of(caplog)
    assert "reconcile" in told
    assert ".save(" in told


def test_plain_credentials_are_warned_about_where_a_hook_may_run_outside(
    platform: LocalPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None: ...

    entrypoint()
    assert warnings_of(caplog) == []

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(entrypoint), "of-plain-ones")
        flow_run = client.create_flow_run_from_deployment(deployment)
    run_flow(entrypoint, flow_run=flow_run)
    assert len(warnings_of(caplog)) == 1


def test_credentials_that_another_process_can_load_are_not(
    platform: LocalPlatform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = platform.credentials
    saved = block_of(known)
    saved.save("saved-for-options", overwrite=True)
    evaluate("saved-for-options")
    evaluate(saved)
    evaluate(PrimeCredentials.load("saved-for-options"))
    monkeypatch.setenv("PRIME_API_KEY", known.api_key.get_secret_value())
    monkeypatch.setenv("PRIME_API_BASE_URL", known.base_url)
    monkeypatch.setenv("PRIME_FRONTEND_URL", known.frontend_url)
    monkeypatch.setenv("PRIME_TRACES_URL", str(known.traces_url))
    evaluate(block_of(known))
    evaluate(None)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("saved", [True, False])
def test_the_spool_of_a_failed_eval_names_a_saved_block_and_holds_no_key(
    platform: LocalPlatform, own_home: Path, *, saved: bool
) -> None:
    block = block_of(platform.credentials)
    if saved:
        block.save("saved-for-hooks", overwrite=True)

    @eval_flow(environments=["toy"], credentials=block)
    def entrypoint() -> None:
        raise ValueError("the eval itself fails")

    entrypoint(return_state=True)

    ((_, folder),) = store.spools(load_settings().spool_dir)
    ledger = Ledger(folder / "ledger.sqlite3")
    plan = EvaluationFacts(ledger).plan()
    ledger.close()
    assert plan is not None
    assert plan.credentials == ("saved-for-hooks" if saved else None)
    key = platform.credentials.api_key.get_secret_value().encode()
    files = [file for file in own_home.rglob("*") if file.is_file()]
    assert [file for file in files if key in file.read_bytes()] == []


def test_a_key_in_the_place_of_a_block_s_name_is_shown_nowhere(
    own_home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PRIME_API_KEY", "geheim-like-a-name")
    for key in ("pit_geheim0123", "geheim-like-a-name", "geheim\n", "Geheim"):
        with pytest.raises(ConfigurationError, match="PRIME_API_KEY") as caught:
            evaluate(key)
        assert "geheim" not in repr(caught.value).lower()
        assert (caught.value.__context__, caught.value.__cause__) == (None, None)
    assert "geheim" not in caplog.text.lower()
    files = [file for file in own_home.rglob("*") if file.is_file()]
    assert [file for file in files if b"geheim" in file.read_bytes().lower()] == []


def test_a_block_with_a_value_that_cannot_be_is_one_clear_error() -> None:
    PrimeCredentials(api_key=SecretStr("a-key")).save("broken", overwrite=True)
    with get_client(sync_client=True) as client:
        document = client.read_block_document_by_name("broken", "prime-credentials")
        client.request(
            "PATCH",
            "/block_documents/{id}",
            path_params={"id": document.id},
            json={"data": {"api_key": "geheim\u00e4", "base_url": "nowhere"}},
        ).raise_for_status()
    with pytest.raises(ConfigurationError, match="credentials='broken'") as caught:
        evaluate("broken")
    assert "base_url is not an http" in str(caught.value)
    assert "api_key holds" in str(caught.value)
    assert "geheim" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_an_eval_without_a_key_says_what_is_wrong_with_the_file_it_would_be_in(
    own_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (own_home / ".prime").mkdir()
    (own_home / ".prime" / "config.json").write_bytes('{"api_key": "a-key"}'.encode("utf-16"))
    evaluate(None)
    (told,) = [each.message for each in caplog.records if "not tracked" in each.message]
    assert f"{own_home / '.prime' / 'config.json'} is not UTF-8" in told


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("caf\u00e9".encode("latin-1"), "not UTF-8"),
        ("a = 1".encode("utf-16"), "not UTF-8"),
        (b"x" * 300 * 1024, "over 256 KiB"),
    ],
)
def test_a_config_that_cannot_be_stored_fails_the_eval_before_any_request(
    platform: LocalPlatform, tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "eval.toml"
    file.write_bytes(content)
    before = len(platform.requests)

    @eval_flow(environments=["toy"], config=str(file), credentials=platform.credentials)
    def entrypoint() -> None:
        raise AssertionError("the eval must not run")

    state = entrypoint(return_state=True)

    assert state.is_failed()
    assert problem in str(state.message)
    assert len(platform.requests) == before


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfa = 1\r\nb = 2\r\n", b"a\0b", b"\xc3\xa9" * 128 * 1024]
)
def test_a_config_reaches_the_platform_byte_for_byte(
    platform: LocalPlatform, evaluations: Any, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "eval.toml"
    file.write_bytes(content)

    @eval_flow(environments=["toy"], config=str(file), credentials=platform.credentials)
    def entrypoint() -> None: ...

    kept = evaluations(entrypoint().evaluation_id)["metadata"]["config_source"]["text"]
    assert kept.encode() == content
