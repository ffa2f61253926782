import json
import threading
import traceback

import pytest

from prefect_prime import errors
from prefect_prime.credentials import Credentials
from prefect_prime.platform_client import PlatformClient

KEY = "pit_0123456789abcdef"


def test_the_environment_calls_have_their_wire_form(scripted, client):
    scripted.script[0].body = {"data": {"id": "env", "name": "gsm8k"}}
    assert client.resolve_environment("gsm8k") == {"id": "env", "name": "gsm8k"}
    assert client.lookup_environment("env")["id"] == "env"
    assert client.latest_environment("prime", "gsm8k")["id"] == "env"
    assert scripted.sent == [
        "POST /api/v1/environmentshub/resolve",
        "POST /api/v1/environmentshub/lookup",
        "GET /api/v1/environmentshub/prime/gsm8k/@latest",
    ]
    assert scripted.asked[0].json == {"name": "gsm8k", "team_id": "team"}
    assert scripted.asked[1].json == {"id": "env"}


def test_an_evaluation_is_created_with_what_was_given_and_nothing_else(scripted, client):
    scripted.script[0].body = {"evaluation_id": "ev", "name": "nightly"}
    answer = client.create_evaluation(
        name="nightly",
        environments=[{"id": "env", "version_id": "v1"}],
        model_name="model",
        dataset="gsm8k",
        tags=["nightly"],
        metadata={"config_source": {"text": "\ufeffa = 1\r\n\0"}},
    )
    assert answer["evaluation_id"] == "ev"
    assert scripted.sent == ["POST /api/v1/evaluations/"]
    assert scripted.asked[0].json == {
        "name": "nightly",
        "environments": [{"id": "env", "version_id": "v1"}],
        "model_name": "model",
        "dataset": "gsm8k",
        "tags": ["nightly"],
        "metadata": {"config_source": {"text": "\ufeffa = 1\r\n\0"}},
        "team_id": "team",
    }


def test_the_evaluation_calls_have_their_wire_form(scripted, client):
    client.list_evaluations(environment_name="gsm 8k", limit=5)
    client.get_evaluation("ev")
    client.update_evaluation("ev", status="FAILED", error_message="x" * 5000)
    client.finalize_evaluation("ev", {"avg_reward": 0.5})
    client.finalize_evaluation("ev")
    assert scripted.sent == [
        "GET /api/v1/evaluations/?environment_name=gsm+8k&team_id=team&skip=0&limit=5",
        "GET /api/v1/evaluations/ev",
        "PUT /api/v1/evaluations/ev",
        "POST /api/v1/evaluations/ev/finalize",
        "POST /api/v1/evaluations/ev/finalize",
    ]
    assert scripted.asked[2].json == {"status": "FAILED", "error_message": "x" * 4096}
    assert scripted.asked[3].json == {"metrics": {"avg_reward": 0.5}}
    assert scripted.asked[4].json == {"metrics": {}}


def test_samples_are_pushed_as_rows_or_as_a_ready_body(scripted, client):
    client.push_samples("ev", [{"sample_id": "1", "reward": float("nan")}])
    client.push_samples("ev", b'{"samples": [{"sample_id": "2"}]}')
    client.list_samples("ev", page=2, limit=7)
    assert scripted.asked[0].json == {"samples": [{"sample_id": "1", "reward": None}]}
    assert scripted.asked[1].body == b'{"samples": [{"sample_id": "2"}]}'
    assert scripted.sent[2] == "GET /api/v1/evaluations/ev/samples?page=2&limit=7"


def test_the_headers_are_honest_and_name_no_team(scripted, client):
    client.get_evaluation("ev")
    headers = scripted.asked[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    products = [product.split("/")[0] for product in headers["user-agent"].split()]
    assert products == ["prefect-prime", "python", "httpx"]
    assert not [name for name in headers if "team" in name]


def test_the_viewer_url_is_the_platforms_or_else_the_dashboards(client):
    assert client.viewer_url({"id": "ev", "viewer_url": "https://x/y"}) == "https://x/y"
    dashboard = "https://app.primeintellect.ai/dashboard/evaluations/ev"
    assert client.viewer_url({"evaluation_id": "ev", "viewer_url": None}) == dashboard
    assert client.viewer_url({"id": "ev", "viewer_url": "javascript:alert(1)"}) == dashboard


@pytest.mark.parametrize("hostile", ["../x", "a/b", "a?b#c", "a%2Fb", "a\nb", "\u00fc", "..%2f"])
def test_an_id_stays_one_segment_of_the_path(scripted, client, hostile):
    client.get_evaluation(hostile)
    path = scripted.asked[0].path
    assert path.startswith("/api/v1/evaluations/")
    assert path.count("/") == 4
    assert "?" not in path


@pytest.mark.parametrize("hostile", ["", ".", ".."])
def test_an_id_that_is_no_segment_is_refused_before_any_request(scripted, client, hostile):
    with pytest.raises(errors.ConfigurationError):
        client.get_evaluation(hostile)
    assert scripted.asked == []


def test_threads_share_one_pool(scripted, client):
    client.get_evaluation("ev")
    client.get_evaluation("ev")
    assert len({asked.connection for asked in scripted.asked}) == 1
    threads = [threading.Thread(target=client.get_evaluation, args=("ev",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(scripted.asked) == 10


def test_what_cannot_be_json_is_refused_before_any_request(scripted, client):
    with pytest.raises(errors.RecordRejectedError, match=r"metadata\.x holds"):
        client.update_evaluation("ev", metadata={"x": object()})
    assert scripted.asked == []


def test_a_proxy_of_the_environment_is_used(scripted, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", scripted.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Credentials(api_key=KEY, base_url="http://platform.invalid").get_client() as client:
        client.get_evaluation("ev")
    assert scripted.sent == ["GET http://platform.invalid/api/v1/evaluations/ev"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SSL_CERT_FILE", "/nowhere/ca.pem"), ("HTTPS_PROXY", "gopher://me:hunter2@proxy")],
)
def test_an_environment_that_httpx_cannot_use_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(errors.ConfigurationError, match=variable) as caught:
        PlatformClient(Credentials(api_key=KEY))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_push_of_megabytes_arrives_whole(scripted, client):
    rows = [{"sample_id": str(index), "text": "\u2028" * 10_000} for index in range(100)]
    client.push_samples("ev", rows)
    assert json.loads(scripted.asked[0].body) == {"samples": rows}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": "ev", "viewer_url": "https://app/ev?x=1#y"}, "https://app/ev?x=1#y"),
        ({"id": "../../x?y#z\n"}, "https://app/dashboard/evaluations/..%2F..%2Fx%3Fy%23z%0A"),
        ({"id": "ev", "viewer_url": "javascript:alert(1)"}, "https://app/dashboard/evaluations/ev"),
        ({"id": "ev", "viewer_url": "https://app\n# x"}, "https://app/dashboard/evaluations/ev"),
        ({"id": "ev", "viewer_url": "https://app)[x]("}, "https://app/dashboard/evaluations/ev"),
    ],
)
def test_the_page_of_an_evaluation_is_one_link_whatever_the_platform_says(given, expected):
    credentials = Credentials(api_key=KEY, frontend_url="https://app")
    with credentials.get_client() as client:
        assert client.viewer_url(given) == expected


def test_a_traceback_that_shows_variables_shows_no_key(scripted, monkeypatch):
    def told_of(use):
        with pytest.raises((errors.APIError, errors.ConfigurationError)) as caught:
            use()
        told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        return "".join(told.format())

    credentials = scripted.credentials(traces_url=scripted.url)
    scripted.script = [scripted.Reply(401), scripted.Reply(action="drop")]
    with credentials.get_client() as client:
        told = [told_of(lambda: client.get_evaluation("ev"))]
        told.append(told_of(lambda: client.push_samples("ev", [{}])))
    monkeypatch.setenv("HTTP_PROXY", "gopher://proxy")
    told += [told_of(credentials.get_client), told_of(credentials.get_traces_client)]
    assert all("self = " in each for each in told)
    assert [each for each in told if KEY in each] == []
