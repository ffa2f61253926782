import concurrent.futures
import gzip
import hashlib
import json
import tracemalloc

import pytest

from prefect_prime.local import Limits, LocalPlatform

MIB = 1024 * 1024
EPISODE = {"X_Prime_Line_Format": "episode"}


def code_of(answer):
    assert answer.status_code in {400, 403, 409}, answer.text
    return answer.json()["error"]["code"]


def stored(api, **params):
    return [item["trace_id"] for item in api.get("/traces", params=params).json()["items"]]


def test_a_receipt_names_the_digest_of_the_lines(api, post_traces):
    data = b'{"id": "receipt"}\n'
    answer = post_traces(api, data)
    digest = hashlib.sha256(data).hexdigest()
    assert answer.json() == {"upload_id": digest, "status": "committed"}
    assert post_traces(api, data, compress=False).json() == answer.json()
    assert stored(api, upload_id=digest) == ["receipt"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("crlf", b'{"id": "crlf"}\r\n'),
        ("blank", b'\n  \n{"id": "blank"}\n\r\n\n'),
        ("no-end", b'{"id": "no-end"}'),
    ],
)
def test_line_ends_and_blank_lines_make_no_difference(api, post_traces, name, data):
    assert post_traces(api, data).is_success
    assert json.loads(api.get(f"/traces/{name}", params={"raw": "true"}).content) == {"id": name}


def test_text_that_only_looks_like_a_line_end_stays_in_its_line(api, post_traces):
    text = "a\u2028b\u0085c\x00d\ufeffe\x1bf"
    record = {"id": "separators", "info": {"text": text}}
    data = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    assert post_traces(api, data).is_success
    raw = api.get("/traces/separators", params={"raw": "true"}).content
    assert raw + b"\n" == data


@pytest.mark.parametrize(
    "key", [None, "", "abc", "sha256:abc", "sha256:" + "A" * 64, "md5:" + "a" * 64]
)
def test_an_idempotency_key_of_another_form_is_refused(api, post_traces, key):
    answer = post_traces(api, [{"id": "keyless"}], Idempotency_Key=key or "")
    assert code_of(answer) == "invalid_idempotency_key"


def test_a_digest_of_other_bytes_is_refused(api, post_traces):
    answer = post_traces(api, [{"id": "digest"}], Idempotency_Key="sha256:" + "a" * 64)
    assert code_of(answer) == "digest_mismatch"
    assert api.get("/traces/digest").status_code == 404


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (b"", "invalid_metadata"),
        (b"{", "invalid_metadata"),
        (b"[]", "invalid_metadata"),
        (b"{}", "invalid_metadata"),
        (b'{"schema_version": "1"}', "invalid_metadata"),
        (b'{"schema_version": true}', "invalid_metadata"),
        (b'{"schema_version": 1, "context": []}', "invalid_metadata"),
        (b'{"schema_version": 1, "context": [1]}', "invalid_metadata"),
        (b'{"schema_version": 1, "context": {"a": 1}}', "invalid_metadata"),
        (b'{"schema_version": 1, "context": {"a": "%s"}}' % (b"x" * 70_000), "invalid_metadata"),
        (b'{"schema_version": 2}', "unsupported_schema_version"),
    ],
)
def test_metadata_of_another_shape_is_refused(api, post_traces, metadata, code):
    assert code_of(post_traces(api, [{"id": "metadata"}], metadata=metadata)) == code


def test_metadata_must_be_there_once(api):
    key = {"Idempotency-Key": "sha256:" + "a" * 64}
    traces = ("traces", ("traces.jsonl", b"{}", "application/x-ndjson"))
    metadata = ("metadata", (None, b'{"schema_version": 1}', "application/json"))
    for parts in ([traces], [metadata, metadata, traces]):
        answer = api.post("/traces", headers=key, files=parts)
        assert code_of(answer) == "invalid_metadata"
    assert code_of(api.post("/traces", headers=key, files=[metadata])) == "invalid_trace"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b"no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data"),
        ("multipart/form-data; boundary=x", b""),
    ],
)
def test_a_body_that_is_no_multipart_is_refused(api, content_type, body):
    headers = {"Idempotency-Key": "sha256:" + "a" * 64, "Content-Type": content_type}
    answer = api.post("/traces", headers=headers, content=body)
    assert code_of(answer) == "invalid_metadata"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not gzip"),
        ("gzip", b""),
        ("gzip", gzip.compress(b'{"id": "g"}\n', mtime=0)[:-4]),
        ("gzip", gzip.compress(b'{"id": "g"}\n', mtime=0) + b"rest"),
        ("br", b"x"),
    ],
)
def test_a_part_that_cannot_be_decoded_is_refused(api, encoding, body):
    part = ("traces.jsonl", body, "application/x-ndjson", {"Content-Encoding": encoding})
    metadata = (None, b'{"schema_version": 1}', "application/json")
    key = {"Idempotency-Key": "sha256:" + hashlib.sha256(b'{"id": "g"}\n').hexdigest()}
    answer = api.post("/traces", headers=key, files={"metadata": metadata, "traces": part})
    assert code_of(answer) == "malformed_encoding"


def test_two_gzip_members_are_one_stream(api):
    lines = [b'{"id": "member-1"}\n', b'{"id": "member-2"}\n']
    body = b"".join(gzip.compress(line) for line in lines)
    part = ("traces.jsonl", body, "application/x-ndjson", {"Content-Encoding": "gzip"})
    metadata = (None, b'{"schema_version": 1}', "application/json")
    key = {"Idempotency-Key": "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()}
    assert api.post("/traces", headers=key, files={"metadata": metadata, "traces": part}).is_success


def test_a_line_that_is_not_utf_8_is_refused(api, post_traces):
    answer = post_traces(api, b'{"id": "ok"}\n{"id": "\xff"}\n')
    assert code_of(answer) == "malformed_encoding"
    assert "line 2" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "torn", "nod',
        b'{"id": "nan", "metrics": {"x": NaN}}',
        b'{"id": "surrogate", "info": {"x": "\\ud800"}}',
        b'["no object"]',
        b"7",
        b"{}",
        b'{"id": ""}',
        b'{"id": 7}',
        b'{"id": "a", "nodes": {}}',
        b'{"id": "a", "nodes": ["text"]}',
        b'{"id": "a", "nodes": [{"message": "text"}]}',
        b'{"id": "a", "calls": [1]}',
        b'{"id": "a", "run": "r"}',
        b'{"id": "a", "run": {"id": 7}}',
        b'{"id": "a", "timing": {"start": "now"}}',
        b'{"id": "a", "rewards": {"r": "high"}}',
        b'{"id": "a", "num_total_tokens": 1.5}',
        b'{"id": "a", "num_total_tokens": 18446744073709551615}',
        b'{"id": "a", "agent": {"config": {"model": ["m"]}}}',
        b'{"id": "a", "env": []}',
        b'{"id": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_line_that_is_no_trace_refuses_the_whole_upload(api, post_traces, line):
    answer = post_traces(api, b'{"id": "neighbour"}\n' + line + b"\n")
    assert code_of(answer) == "invalid_trace"
    assert "line 2" in answer.json()["error"]["message"]
    assert api.get("/traces/neighbour").status_code == 404


@pytest.mark.parametrize("depth", [*range(244, 258), 500])
def test_a_deep_record_is_stored_and_readable_or_refused(api, post_traces, depth):
    deep = json.loads("[" * depth + "]" * depth)
    record = {"id": f"deep-{depth}", "nodes": [{"message": {"role": "user", "content": deep}}]}
    episode = {"id": f"deep-e{depth}", "info": deep, "traces": [record]}
    answers = [post_traces(api, [record]), post_traces(api, [episode], **EPISODE)]
    if answers[0].is_success:
        assert api.get(f"/traces/deep-{depth}/nodes").is_success
    assert depth > 245 or answers[0].is_success
    refused = [code_of(answer) for answer in answers if not answer.is_success]
    assert set(refused) <= {"invalid_trace"}


def test_an_upload_without_lines_is_refused(api, post_traces):
    assert code_of(post_traces(api, b"\n\n")) == "invalid_trace"


def test_lines_must_have_the_declared_format(api, post_traces):
    episode = {"id": "format-e", "traces": [{"id": "format-t"}]}
    assert code_of(post_traces(api, [episode])) == "line_format_mismatch"
    assert code_of(post_traces(api, [{"id": "t"}], **EPISODE)) == "line_format_mismatch"
    answer = post_traces(api, [episode], X_Prime_Line_Format="rollout")
    assert code_of(answer) == "line_format_mismatch"
    assert post_traces(api, [episode], **EPISODE).is_success


def test_the_same_bytes_under_another_format_conflict(api, post_traces):
    data = b'{"id": "conflict", "traces": []}\n'
    assert post_traces(api, data, **EPISODE).is_success
    answer = post_traces(api, data)
    assert answer.status_code == 409
    assert code_of(answer) == "line_format_conflict"


def test_an_id_twice_in_one_upload_is_refused(api, post_traces):
    assert code_of(post_traces(api, [{"id": "twin"}, {"id": "twin"}])) == "duplicate_trace_id"
    episodes = [{"id": "twin-e", "traces": [{"id": name}]} for name in ("t1", "t2")]
    assert code_of(post_traces(api, episodes, **EPISODE)) == "duplicate_episode_id"
    episodes = [{"id": name, "traces": [{"id": "t1"}]} for name in ("e1", "e2")]
    assert code_of(post_traces(api, episodes, **EPISODE)) == "duplicate_trace_id"


def test_identifiers_have_a_longest_length(api, post_traces):
    def post(episode):
        return post_traces(api, [{"id": "long", "traces": [{"id": "l"}]} | episode], **EPISODE)

    assert code_of(post({"id": "x" * 257})) == "episode_id_too_long"
    assert code_of(post({"env": {"id": "x" * 257}})) == "environment_id_too_long"
    answer = post_traces(api, [{"id": "bare", "env": {"id": "x" * 257}}])
    assert code_of(answer) == "environment_id_too_long"
    assert post({"id": "x" * 256, "env": {"id": "x" * 256}}).is_success


@pytest.mark.parametrize("start", [1, 1_796_126_262_000, 1e300, -5])
def test_a_start_outside_this_century_is_refused(api, post_traces, start):
    answer = post_traces(api, [{"id": "when", "timing": {"start": start}}])
    assert code_of(answer) == "created_at_out_of_window"


def test_a_bare_trace_may_name_only_a_stored_episode(api, post_traces):
    trace = {"id": "late-member", "episode_id": "reference-e"}
    assert code_of(post_traces(api, [trace])) == "unknown_episode_reference"
    post_traces(api, [{"id": "reference-e", "traces": []}], **EPISODE)
    assert post_traces(api, [trace]).is_success
    listed = api.get("/episodes/reference-e/traces").json()["items"]
    assert [item["trace_id"] for item in listed] == ["late-member"]


def test_counts_and_sizes_are_limited_to_the_documented_codes(connect, post_traces):
    limits = Limits(
        line=100, upload=1000, upload_rows=5, episode_traces=2, identifier=10, traces_body=4000
    )
    with LocalPlatform(limits=limits) as platform:
        api = connect(platform)
        line = b'{"id": "%s"}' % (b"x" * 91)
        assert len(line) == 101
        cases = {
            "trace_too_large": post_traces(api, line + b"\n"),
            "upload_too_large": post_traces(api, [{"id": str(n)} for n in range(100)]),
            "too_many_traces_in_upload": post_traces(api, [{"id": str(n)} for n in range(6)]),
            "too_many_traces_in_episode": post_traces(
                api, [{"id": "e", "traces": [{"id": str(n)} for n in range(3)]}], **EPISODE
            ),
        }
        assert {expected: code_of(answer) for expected, answer in cases.items()} == {
            expected: expected for expected in cases
        }
        plain = post_traces(api, [{"id": str(n)} for n in range(100)], compress=False)
        assert code_of(plain) == "upload_too_large"
        answer = post_traces(api, b'{"id": "%s"}\n' % (b"x" * 5000), compress=False)
        assert answer.status_code == 413
        assert post_traces(api, [{"id": str(n)} for n in range(5)]).is_success


def test_a_line_over_64_mib_is_too_large(api, post_traces):
    assert code_of(post_traces(api, b" " * (64 * MIB) + b"{}\n")) == "trace_too_large"


def test_a_gzip_bomb_is_refused_at_the_limit(api):
    bomb = gzip.compress(b" " * (32 * MIB)) * 64
    part = ("traces.jsonl", bomb, "application/x-ndjson", {"Content-Encoding": "gzip"})
    metadata = (None, b'{"schema_version": 1}', "application/json")
    key = {"Idempotency-Key": "sha256:" + "a" * 64}
    tracemalloc.start()
    answer = api.post("/traces", headers=key, files={"metadata": metadata, "traces": part})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert code_of(answer) == "upload_too_large"
    assert peak < 400 * MIB


def test_a_request_over_32_mib_on_the_wire_is_a_gateways_413(api, post_traces):
    answer = post_traces(api, b" " * (33 * MIB), compress=False)
    assert answer.status_code == 413
    assert "error" not in answer.json()


def test_a_newer_copy_replaces_a_stored_trace(api, post_traces):
    first = {"id": "copy", "run": {"id": "old"}}
    second = {"id": "copy", "run": {"id": "new"}}
    post_traces(api, [first])
    post_traces(api, [second])
    assert api.get("/traces/copy").json()["run_id"] == "new"
    assert api.get("/traces/copy", params={"raw": "true"}).json() == second
    assert stored(api, run_id="old") == []
    post_traces(api, [first])
    assert api.get("/traces/copy").json()["run_id"] == "new"


def test_a_platform_can_refuse_what_is_stored_already(connect, post_traces):
    with LocalPlatform(duplicate_traces="refuse") as platform:
        api = connect(platform)
        post_traces(api, [{"id": "e", "traces": [{"id": "t"}]}], **EPISODE)
        answer = post_traces(api, [{"id": "t", "x": 1}, {"id": "other"}])
        assert code_of(answer) == "duplicate_trace_id"
        answer = post_traces(api, [{"id": "e", "traces": []}], **EPISODE)
        assert code_of(answer) == "duplicate_episode_id"
        assert stored(api) == ["t"]
        replay = post_traces(api, [{"id": "e", "traces": [{"id": "t"}]}], **EPISODE)
        assert replay.is_success


@pytest.mark.parametrize(
    ("mode", "code"), [("not_enabled", "service_not_enabled"), ("forbidden", "forbidden")]
)
def test_an_account_may_have_no_traces(connect, post_traces, mode, code):
    with LocalPlatform(traces=mode) as platform:
        api = connect(platform)
        for answer in (post_traces(api, [{"id": "t"}]), api.get("/traces"), api.get("/runs")):
            assert answer.status_code == 403
            assert code_of(answer) == code
        assert api.get("/evaluations/").is_success


def test_many_clients_at_once_store_everything_once(platform, connect, post_traces):
    def push(writer):
        client = connect(platform)
        for number in range(4):
            own = [{"id": f"many-{writer}-{number}", "run": {"id": "many"}}]
            shared = [{"id": f"many-shared-{number}", "run": {"id": "many"}}]
            assert post_traces(client, own).is_success
            assert post_traces(client, shared).is_success

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(push, range(6)))
    api = connect(platform)
    assert len(stored(api, run_id="many")) == 6 * 4 + 4
    assert api.get("/runs/many").json()["trace_count"] == 6 * 4 + 4
