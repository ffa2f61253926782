import json
import pickle

import pytest

from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import DEFAULT_TRACES_URL

KEY = "pit_0123456789abcdef"


def made(**fields) -> Credentials:
    return Credentials(**{"api_key": KEY, **fields})


@pytest.mark.parametrize(
    "url",
    [
        "https://host:8443",
        "https://host:8443/",
        "https://host:8443/api/v1",
        "https://host:8443/api/v1/api/v1//",
        " https://HOST:8443\n",
    ],
)
def test_every_way_to_write_a_base_url_gives_the_same(url):
    assert made(base_url=url).base_url == "https://host:8443"


def test_a_prefix_of_the_base_url_is_kept():
    assert made(base_url="http://host/prime/api/v1/").base_url == "http://host/prime"


def test_an_ipv6_host_keeps_its_brackets():
    credentials = made(base_url="http://[::1]:80/")
    assert credentials.base_url == "http://[::1]:80"
    assert credentials.origin == "http://[::1]:80"


def test_the_origin_always_names_the_port():
    assert made().origin == "https://api.primeintellect.ai:443"
    assert made(base_url="http://host/prefix").origin == "http://host:80"


@pytest.mark.parametrize("field", ["base_url", "frontend_url", "traces_url"])
@pytest.mark.parametrize(
    "url",
    [
        "host",
        "ftp://host",
        "https://",
        "https://host:99999",
        "https://user:password@host",
        "https://host?x=1",
        "https://host#x",
        "https://ho st",
        "https://host/\nx",
        "https://[::1",
        "https://[v1.x]",
        "https://host:0",
        "https://.",
        "https://host\\.elsewhere",
        "https://host%2f.elsewhere",
        "https://host<x",
        "https://\u24d7ost",
        "https://host/a/../b",
        "https://host/%2e%2e/b",
        "https://host\\x",
    ],
)
def test_a_url_that_is_none_is_named_with_its_field(field, url):
    with pytest.raises(ConfigurationError, match=f"{field} ") as caught:
        made(**{field: url})
    assert "write https://host" in str(caught.value)
    assert "password@" not in str(caught.value)


def test_a_key_loses_the_newline_it_was_read_with():
    assert made(api_key=f" {KEY}\n").api_key.get_secret_value() == KEY


@pytest.mark.parametrize("key", ["", " \n", "gehe im", "geheim\u00e4", "geheim\r\nX-Evil: 1"])
def test_a_key_that_cannot_be_one_is_refused_unseen(key):
    with pytest.raises(ConfigurationError, match="api_key ") as caught:
        made(api_key=key)
    assert "gehe" not in str(caught.value)
    assert b"gehe" not in pickle.dumps(caught.value)
    assert caught.value.__context__ is None


def test_a_blank_team_is_none():
    assert made(team_id=" ").team_id is None
    assert made(team_id="team").team_id == "team"


def test_a_team_that_fits_no_header_is_refused():
    with pytest.raises(ConfigurationError, match="team_id"):
        made(team_id="t\u00e4m")


def test_nothing_shows_the_key():
    credentials = made()
    assert KEY not in f"{credentials!r} {credentials} {credentials.model_dump_json()}"


def test_credentials_survive_pickling():
    credentials = made(team_id="t")
    assert pickle.loads(pickle.dumps(credentials)) == credentials  # noqa: S301 - made here


def test_the_public_platform_has_the_public_traces():
    assert made().effective_traces_url == DEFAULT_TRACES_URL
    assert made().traces_skipped_reason is None
    assert made(base_url="https://API.primeintellect.ai:443/").effective_traces_url is not None


def test_another_platform_without_a_traces_url_skips_traces():
    credentials = made(base_url="http://127.0.0.1:1")
    assert credentials.effective_traces_url is None
    assert "PRIME_TRACES_URL" in str(credentials.traces_skipped_reason)
    with pytest.raises(ConfigurationError, match="PRIME_TRACES_URL"):
        credentials.get_traces_client()


def test_the_traces_client_takes_nothing_from_the_environment(monkeypatch, own_home):
    monkeypatch.setenv("PRIME_API_KEY", "other-key")
    monkeypatch.setenv("PRIME_TEAM_ID", "other-team")
    monkeypatch.setenv("PRIME_TRACES_URL", "http://elsewhere")
    (own_home / ".prime").mkdir()
    (own_home / ".prime" / "config.json").write_text(json.dumps({"team_id": "file-team"}))
    traces = made().get_traces_client().client
    assert traces.api_key == KEY
    assert traces.team_id == ""
    assert traces.base_url == DEFAULT_TRACES_URL
    traces.close()


def test_the_traces_client_follows_no_redirect(scripted):
    credentials = scripted.credentials(traces_url=scripted.url)
    scripted.script[0].status = 307
    scripted.script[0].headers["Location"] = "http://127.0.0.1:1/elsewhere"
    traces = credentials.get_traces_client()
    with pytest.raises(Exception, match="307"):
        traces.client.upload_batch(b"{}\n", "sha256:0")
    assert [asked.path for asked in scripted.asked] == ["/api/v1/traces"]
    assert scripted.asked[0].headers["user-agent"].startswith("prefect-prime/")
    traces.client.close()


def test_no_key_anywhere_gives_no_credentials():
    assert Credentials.from_environment() is None


def test_the_environment_gives_credentials(monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    monkeypatch.setenv("PRIME_BASE_URL", "http://127.0.0.1:8000/api/v1")
    monkeypatch.setenv("PRIME_TRACES_URL", "http://127.0.0.1:8001")
    credentials = Credentials.from_environment()
    assert credentials == made(base_url="http://127.0.0.1:8000", traces_url="http://127.0.0.1:8001")
