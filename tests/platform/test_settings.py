import json
import logging
from pathlib import Path

import pytest

from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import DEFAULT_BASE_URL
from prefect_prime.settings import VARIABLES, Settings, config_file, load_settings


@pytest.fixture
def write_config(own_home: Path):
    def write(content: bytes | str) -> None:
        folder = own_home / ".prime"
        folder.mkdir()
        raw = content.encode() if isinstance(content, str) else content
        (folder / "config.json").write_bytes(raw)

    return write


def test_every_field_has_its_variable():
    assert set(VARIABLES) == set(Settings.model_fields)


def test_nothing_set_gives_the_defaults(own_home):
    settings = load_settings()
    assert settings.api_key is None
    assert settings.team_id is None
    assert settings.base_url == DEFAULT_BASE_URL
    assert settings.traces_url is None
    assert settings.mode == "online"
    assert settings.sinks == "traces,samples"
    assert settings.spool_dir == own_home / ".prefect-prime" / "spool"
    assert settings.segment_bytes == 8 * 1024 * 1024
    assert settings.drain_timeout == 300


def test_precedence_holds_per_field(write_config, monkeypatch):
    write_config('{"api_key": "from-file", "base_url": "http://file", "team_id": "file-team"}')
    monkeypatch.setenv("PRIME_API_KEY", "from-environment")
    settings = load_settings()
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "from-environment"
    assert settings.base_url == "http://file"
    assert settings.team_id == "file-team"


def test_a_blank_team_in_the_environment_means_no_team(write_config, monkeypatch):
    write_config('{"team_id": "file-team"}')
    monkeypatch.setenv("PRIME_TEAM_ID", " ")
    assert load_settings().team_id is None


def test_any_other_blank_variable_counts_as_unset(write_config, monkeypatch):
    write_config('{"base_url": "http://file"}')
    monkeypatch.setenv("PRIME_API_BASE_URL", "")
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_AGE", " ")
    assert load_settings().base_url == "http://file"
    assert load_settings().segment_age == 10


def test_the_newer_name_of_the_base_url_wins(monkeypatch):
    monkeypatch.setenv("PRIME_BASE_URL", "http://old")
    assert load_settings().base_url == "http://old"
    monkeypatch.setenv("PRIME_API_BASE_URL", "http://new/api/v1/")
    assert load_settings().base_url == "http://new"


def test_null_and_blank_in_the_file_count_as_unset(write_config):
    write_config('{"base_url": null, "team_id": "", "api_key": "  ", "other": 1}')
    settings = load_settings()
    assert settings.base_url == DEFAULT_BASE_URL
    assert settings.team_id is None
    assert settings.api_key is None


def test_only_its_own_keys_are_taken_from_the_file(write_config):
    write_config('{"mode": "disabled", "spool_dir": "/elsewhere"}')
    assert load_settings().mode == "online"


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("Yes", True), ("off", False)])
def test_the_opt_out_is_a_switch(monkeypatch, text, expected):
    monkeypatch.setenv("PRIME_TRACES_OPT_OUT", text)
    assert load_settings().traces_opt_out is expected


def test_the_opt_out_may_stand_in_the_file(write_config):
    write_config('{"traces_opt_out": true}')
    assert load_settings().traces_opt_out


def test_sinks_may_be_listed_in_any_order(monkeypatch):
    monkeypatch.setenv("PREFECT_PRIME_SINKS", "samples, Traces")
    assert load_settings().sinks == "traces,samples"


def test_a_relative_spool_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_PRIME_SPOOL_DIR", "queue")
    assert load_settings().spool_dir == tmp_path / "queue"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("PRIME_RUNS_MODE", "onlin", "'offline'"),
        ("PREFECT_PRIME_SINKS", "traces,metrics", "'auto'"),
        ("PREFECT_PRIME_SEGMENT_BYTES", "8MiB", "integer"),
        ("PREFECT_PRIME_SEGMENT_BYTES", "0", "greater than 0"),
        ("PREFECT_PRIME_UPLOADS_IN_FLIGHT", "1000", "less than or equal to 64"),
        ("PREFECT_PRIME_DRAIN_TIMEOUT", "inf", "finite"),
        ("PREFECT_PRIME_DRAIN_TIMEOUT", "-1", "greater than or equal to 0"),
        ("PREFECT_PRIME_SPOOL_DIR", "~nobody-here/x", "home directory"),
        ("PRIME_TRACES_OPT_OUT", "perhaps", "true, 1, yes, on"),
        ("PRIME_BASE_URL", "platform", "https://host"),
        ("PRIME_FRONTEND_URL", "ftp://host", "https://host"),
    ],
)
def test_a_bad_value_is_named_with_its_variable_and_what_is_allowed(
    monkeypatch, variable, value, allowed
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert f"{variable}={value!r}" in str(caught.value)
    assert allowed in str(caught.value)


def test_a_bad_value_in_the_file_is_named_with_the_file(write_config):
    write_config('{"base_url": 5}')
    with pytest.raises(ConfigurationError, match=r"base_url in .*config\.json=5"):
        load_settings()


def test_a_bad_key_is_never_shown(monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", "geheim\u00fc")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value).startswith("PRIME_API_KEY: ")
    assert "geheim" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_password_in_a_url_is_never_shown(monkeypatch):
    monkeypatch.setenv("PRIME_TRACES_URL", "https://me:hunter2@host")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "PRIME_TRACES_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"api_key": ', "is not JSON"),
        (b"", "is not JSON"),
        (b'["api_key"]', "holds a JSON list"),
        (b'{"api_key": "\xfc"}', "is not UTF-8"),
        ('{"api_key": "x"}'.encode("utf-16"), "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_file_is_warned_about_once_and_absent(write_config, caplog, content, problem):
    write_config(content)
    with caplog.at_level(logging.WARNING):
        assert load_settings().api_key is None
        assert load_settings().api_key is None
    assert len(caplog.records) == 1
    assert str(config_file()) in caplog.text
    assert problem in caplog.text


def test_a_directory_in_the_files_place_is_warned_about(own_home, caplog):
    (own_home / ".prime" / "config.json").mkdir(parents=True)
    assert load_settings().api_key is None
    assert "cannot be read" in caplog.text


def test_a_byte_order_mark_does_no_harm(write_config, caplog):
    write_config(b"\xef\xbb\xbf" + json.dumps({"team_id": "t"}).encode())
    assert load_settings().team_id == "t"
    assert caplog.records == []


def test_home_is_read_when_settings_are(monkeypatch, tmp_path):
    load_settings()
    other = tmp_path / "other"
    (other / ".prime").mkdir(parents=True)
    (other / ".prime" / "config.json").write_text('{"team_id": "other"}')
    monkeypatch.setenv("HOME", str(other))
    assert load_settings().team_id == "other"


def test_repr_shows_no_key(monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", "geheim")
    assert "geheim" not in repr(load_settings())


def test_no_env_file_is_read(monkeypatch, tmp_path):
    (tmp_path / ".env").write_text("PRIME_TEAM_ID=from-dotenv\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings().team_id is None
