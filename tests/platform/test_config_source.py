import os
from decimal import Decimal
from pathlib import Path

import pytest

from prefect_prime.config_source import MAX_CONFIG_BYTES, read_config
from prefect_prime.errors import ConfigurationError


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_no_config_is_no_metadata():
    assert read_config(None) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval.toml", "toml"),
        ("eval.JSON", "json"),
        ("eval.yaml", "yaml"),
        ("eval.yml", "yaml"),
        ("eval.conf", "text"),
        ("eval", "text"),
    ],
)
def test_the_format_follows_the_suffix(here, name, expected):
    (here / name).write_text("x")
    assert read_config(name) == {
        "config_source": {"format": expected, "text": "x", "filename": name}
    }


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfa = 1\r\n",
        b"a\0b\n\n",
        "\u2028\x85\x1b \U0001f600".encode(),
        b"",
        b"x" * MAX_CONFIG_BYTES,
    ],
)
def test_a_file_is_kept_byte_for_byte(here, content):
    (here / "eval.toml").write_bytes(content)
    assert read_config("eval.toml")["config_source"]["text"].encode() == content


def test_a_file_is_found_beside_the_flow_when_it_is_not_here(here, tmp_path):
    beside = tmp_path / "flow"
    beside.mkdir()
    (beside / "eval.toml").write_text("beside")
    assert read_config("eval.toml", beside)["config_source"]["text"] == "beside"
    (here / "eval.toml").write_text("here")
    assert read_config(Path("eval.toml"), beside)["config_source"]["text"] == "here"


def test_a_missing_file_is_named_with_the_places_looked_in(here, tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        read_config("eval.toml", tmp_path / "flow")
    assert str(here) in str(caught.value)
    assert str(tmp_path / "flow") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("caf\u00e9".encode("latin-1"), "not UTF-8"),
        ("a = 1".encode("utf-16"), "not UTF-8"),
        (b"x" * (MAX_CONFIG_BYTES + 1), "over 256 KiB"),
        ("\u00e9".encode() * MAX_CONFIG_BYTES, "over 256 KiB"),
    ],
)
def test_a_file_that_cannot_be_stored_is_refused(here, content, problem):
    (here / "eval.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem):
        read_config("eval.toml")


def test_a_directory_is_refused(here):
    (here / "configs").mkdir()
    with pytest.raises(ConfigurationError, match="is a directory"):
        read_config("configs")


def test_a_pipe_is_refused_and_not_waited_for(here):
    os.mkfifo(here / "eval.toml")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        read_config("eval.toml")


def test_a_configs_own_text_is_no_path_and_is_not_repeated(here):  # noqa: ARG001 - the cwd
    text = "api_key = 'x'\n" * 1000
    with pytest.raises(ConfigurationError) as caught:
        read_config(text)
    assert len(str(caught.value)) < 1000


def test_a_mapping_is_stored_as_given():
    config = {"n": 1, "nested": {"x": [1.5, None, True]}, "config_source": {"text": "mine"}}
    assert read_config(config) == config


@pytest.mark.parametrize("key", ["prefect", "prime_runs"])
def test_a_reserved_key_is_refused(key):
    with pytest.raises(ConfigurationError, match=f"'{key}' is reserved"):
        read_config({key: {}})


def test_a_mapping_takes_its_natural_json():
    config = {"n": Decimal(1), 2: {"path": Path("a/b"), "nan": float("nan")}}
    assert read_config(config) == {"n": 1, "2": {"path": "a/b", "nan": None}}


def test_a_mapping_that_has_no_json_is_refused_with_the_place():
    with pytest.raises(ConfigurationError, match=r"config: a\.b\[0\] holds"):
        read_config({"a": {"b": [object()]}})


def test_anything_else_is_refused():
    with pytest.raises(ConfigurationError, match="list"):
        read_config(["eval.toml"])  # type: ignore[arg-type]
