"""The embedded platform against whoever is not its user, and against its user's mistakes."""

import base64
import gzip
import hashlib
import hmac
import json
import socket
import zlib

import httpx
import pytest

from prefect_prime.local import Faults, Limits, LocalPlatform

KEY = "a-key-that-nobody-shows"


def listening_on(platform):
    (server,) = platform._server.servers
    return [each.getsockname()[0] for each in server.sockets]


def test_it_listens_on_the_loopback_only_after_a_restart_too(connect):
    with LocalPlatform(faults=Faults({"GET /traces": "restart 0"})) as platform:
        assert listening_on(platform) == ["127.0.0.1"]
        with pytest.raises(httpx.ReadError):
            connect(platform).get("/traces")
        platform.faults = None
        assert connect(platform).get("/traces").status_code == 200
        assert listening_on(platform) == ["127.0.0.1"]


# -- the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/evaluations/", "/traces"])
def test_keys_are_compared_in_constant_time(platform, connect, monkeypatch, path):
    compared = []

    def spy(given, expected):
        compared.append((given, expected))
        return real(given, expected)

    real = hmac.compare_digest
    monkeypatch.setattr("prefect_prime.local.app.hmac.compare_digest", spy)
    key = platform.credentials.api_key.get_secret_value()
    assert connect(platform, "wrong").get(path).status_code == 401
    assert compared == [(b"Bearer wrong", f"Bearer {key}".encode())]


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer \xff\xfe",
        b"Basic " + KEY.encode(),
        b"bearer " + KEY.encode(),
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.encode()[:-1],
        b"Bearer " + KEY.encode() + b"\xc3\xa9",
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/evaluations/", "/api/v1/traces"])
def test_any_other_key_is_a_401(keyed, header, path):
    headers = {} if header is None else {"Authorization": header}
    assert httpx.get(keyed.url + path, headers=headers).status_code == 401


@pytest.fixture(scope="module")
def keyed():
    with LocalPlatform(api_key=KEY) as running:
        yield running


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\nbreak", "nul\x00", " "])
def test_a_key_that_is_none_is_an_error_that_does_not_show_it(key):
    with pytest.raises(ValueError, match=r"^api_key ") as caught:
        LocalPlatform(api_key=key)
    assert key.strip() == "" or key not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_key_is_in_no_answer_no_page_no_log_and_no_repr(
    keyed, connect, new_evaluation, caplog, capfd
):
    for name in (None, "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        caplog.set_level(1, logger=name)
    api = connect(keyed)
    evaluation = new_evaluation(api, metadata={"a": 1})
    keyed.faults = Faults({"POST /traces": ["500 before", "503 after", "reset before"]})
    answers = [
        api.get(f"/evaluations/{evaluation}"),
        api.get("/evaluations/"),
        api.get("/evaluations/nobody"),
        api.post("/evaluations/", content=b"no json"),
        api.post("/traces"),
        api.post("/traces"),
        api.get("/traces", params={"cursor": "x"}),
        httpx.get(keyed.url),
        httpx.get(f"{keyed.url}/dashboard/evaluations/{evaluation}"),
        httpx.get(f"{keyed.url}/dashboard/evaluations/nobody"),
    ]
    with pytest.raises(httpx.ReadError):
        api.post("/traces")
    port = int(keyed.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nno header\r\n\r\n".encode())
        assert b" 400 " in raw.recv(10_000)
    for answer in answers:
        assert KEY not in answer.text + str(answer.headers)
    ours = [one.getMessage() for one in caplog.records if not one.name.startswith("http")]
    printed = capfd.readouterr()
    shown = [*ours, printed.out, printed.err, repr(keyed), repr(keyed.credentials)]
    shown += [repr(keyed.requests), repr(keyed.faults)]
    assert not [text for text in shown if KEY in text]


# -- what producers wrote ------------------------------------------------------------------------


def test_the_pages_escape_every_field_that_a_producer_wrote(platform, connect):
    hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
    api = connect(platform)
    environment = api.post("/environmentshub/resolve", json={"name": f"{hostile[:10]} env"})
    texts = ("name", "suite_id", "model_name", "dataset", "framework", "task_type", "description")
    made = api.post(
        "/evaluations/",
        json={
            **dict.fromkeys((*texts, "team_id", "run_id"), hostile),
            "environments": [{"id": environment.json()["data"]["id"], "version_id": hostile}],
            "tags": [hostile],
            "metadata": {hostile: hostile, "config_source": {"text": hostile, "format": hostile}},
            "metrics": {hostile: hostile, "avg_metrics": {hostile: [hostile]}, "avg_reward": 0.5},
        },
    ).json()
    samples = {"samples": [{hostile: hostile, "sample_id": hostile, "prompt": [hostile]}]}
    api.post(f"/evaluations/{made['id']}/samples", json=samples)
    closing = {"status": "FAILED", "error_message": hostile}
    assert api.put(f"/evaluations/{made['id']}", json=closing).is_success
    for page in (httpx.get(platform.url), httpx.get(made["viewer_url"])):
        assert page.status_code == 200
        assert "&lt;script&gt;alert(1)" in page.text
        for raw in ("<script>alert", "<img src=x", "\"'>"):
            assert raw not in page.text


# -- sizes ---------------------------------------------------------------------------------------


def multipart(traces, *, encoding="gzip", more=b""):
    head = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n'
    return b"".join(
        [
            more,
            head % b"metadata" + b'\r\n{"schema_version": 1}\r\n',
            head % b"traces" + b"Content-Encoding: %s\r\n\r\n" % encoding.encode() + traces,
            b"\r\n--b--\r\n",
        ]
    )


def post(api, body, lines=b""):
    headers = {
        "Content-Type": "multipart/form-data; boundary=b",
        "Idempotency-Key": f"sha256:{hashlib.sha256(lines).hexdigest()}",
    }
    return api.post("/traces", content=body, headers=headers)


def code_of(answer):
    assert answer.status_code == 400
    return answer.json()["error"]["code"]


@pytest.mark.parametrize("members", [1, 50])
def test_a_gzip_bomb_is_inflated_to_the_limit_and_no_further(connect, monkeypatch, members):
    inflated = []

    class Counting:
        def __init__(self, wbits):
            self._real = zlib.decompressobj(wbits)

        def __getattr__(self, name):
            return getattr(self._real, name)

        def decompress(self, data, max_length):
            inflated.append(len(chunk := self._real.decompress(data, max_length)))
            return chunk

    monkeypatch.setattr(
        "prefect_prime.local.traces_request.zlib",
        type("zlib", (), {"decompressobj": Counting, "error": zlib.error}),
    )
    bomb = gzip.compress(bytes(100_000_000 // members)) * members
    with LocalPlatform(limits=Limits(upload=5_000_000)) as platform:
        assert code_of(post(connect(platform), multipart(bomb))) == "upload_too_large"
    assert sum(inflated) == 5_000_001


def test_a_gzip_of_countless_members_is_refused(api):
    body = multipart(gzip.compress(b"") * 100_000)
    assert code_of(post(api, body)) == "malformed_encoding"


def test_a_gzip_of_some_members_is_read(api):
    lines = [b'{"id": "member-%d"}\n' % number for number in range(100)]
    body = multipart(b"".join(map(gzip.compress, lines)))
    assert post(api, body, b"".join(lines)).status_code == 200


def test_countless_parts_are_refused(api):
    parts = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n' * 50_000
    assert code_of(post(api, multipart(b"", more=parts))) == "invalid_metadata"


def test_countless_blank_lines_are_refused_before_they_are_a_list(api, monkeypatch):
    monkeypatch.setattr("prefect_prime.local.traces_lines._lines", None)
    lines = b"\n" * 1_000_001
    body = multipart(gzip.compress(lines))
    assert code_of(post(api, body, lines)) == "too_many_traces_in_upload"


def test_countless_wrong_rows_are_answered_with_the_first_problem(api, new_evaluation):
    path = f"/evaluations/{new_evaluation(api)}/samples"
    answer = api.post(path, json={"samples": [1] * 10_000})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("samples.0: ")
    assert "samples.1:" not in answer.text


@pytest.mark.parametrize("path", ["/traces", "/episodes"])
def test_countless_filters_are_refused(api, path):
    query = [(f"context.{number}", "1") for number in range(1500)]
    assert code_of(api.get(path, params=query)) == "invalid_filter"


def test_a_filter_may_be_repeated_as_often_as_it_fits(api):
    answer = api.get("/traces", params=[("upload_id", str(number)) for number in range(500)])
    assert answer.json()["items"] == []


# -- numbers that fit no column ------------------------------------------------------------------


def test_sums_of_an_episode_end_at_the_largest_integer(api, post_traces):
    huge = {"num_total_tokens": 2**63 - 1}
    episode = {"id": "huge", "traces": [{"id": "huge-1", **huge}, {"id": "huge-2", **huge}]}
    post_traces(api, [episode], x_prime_line_format="episode")
    assert api.get("/episodes/huge").json()["traces"]["total_tokens"] == 2**63 - 1


def test_a_forged_cursor_with_huge_numbers_is_refused(api, post_traces):
    post_traces(api, [{"id": "forged-1"}, {"id": "forged-2"}])
    cursor = api.get("/traces", params={"limit": 1}).json()["next_cursor"]
    filters, *_ = json.loads(base64.urlsafe_b64decode(cursor))
    forged = base64.urlsafe_b64encode(json.dumps([filters, 2**64 - 1, 1]).encode()).decode()
    assert code_of(api.get("/traces", params={"limit": 1, "cursor": forged})) == "invalid_cursor"
