import concurrent.futures
import json

import httpx
import pytest

from prefect_prime.local import Limits, LocalPlatform


def status_of(api, evaluation):
    return api.get(f"/evaluations/{evaluation}").json()["status"]


def close(api, evaluation, status="FAILED", message="it broke"):
    body = {"status": status, "error_message": message}
    return api.put(f"/evaluations/{evaluation}", json=body)


def test_a_name_resolves_to_the_same_environment_every_time_and_per_team(api):
    def resolve(**body):
        return api.post("/environmentshub/resolve", json=body).json()["data"]["id"]

    first = resolve(name="math")
    assert resolve(name="math") == first
    assert resolve(name="math", team_id="team-1") != first
    assert resolve(name="maths") != first


def test_a_lookup_knows_resolved_and_published_ids_and_no_others(platform, api):
    published = platform.publish_environment("lab/known")
    resolved = api.post("/environmentshub/resolve", json={"name": "own"}).json()["data"]["id"]
    for known in (published, resolved):
        answer = api.post("/environmentshub/lookup", json={"id": known})
        assert answer.json()["data"]["id"] == known
    answer = api.post("/environmentshub/lookup", json={"id": "nobody"})
    assert answer.status_code == 404
    assert isinstance(answer.json()["detail"], str)


def test_only_a_published_slug_has_a_latest_version(platform, api):
    assert api.get("/environmentshub/lab/gsm8k/@latest").status_code == 404
    published = platform.publish_environment("lab/gsm8k")
    assert platform.publish_environment("lab/gsm8k") == published
    assert api.get("/environmentshub/lab/gsm8k/@latest").json()["data"]["id"] == published
    assert api.get("/environmentshub/lab/gsm8k@1.2.0/@latest").status_code == 404
    assert api.get("/environmentshub/lab/gsm8k/extra/@latest").status_code == 404


@pytest.mark.parametrize("slug", ["name", "owner/", "/name", "a/b/c", "a/b@1.0"])
def test_publishing_takes_owner_slash_name_only(platform, slug):
    with pytest.raises(ValueError, match="owner/name"):
        platform.publish_environment(slug)


def test_a_new_evaluation_is_running_and_shows_what_the_producer_said(api, new_evaluation):
    said = {
        "model_name": "m",
        "dataset": "gsm8k",
        "framework": "verifiers",
        "tags": ["nightly"],
        "metadata": {"a": {"b": [1, None, "é"]}},
        "metrics": {"avg_reward": 0.5},
        "description": "d",
        "suite_id": "s",
    }
    evaluation = new_evaluation(api, name="n", **said)
    shown = api.get(f"/evaluations/{evaluation}").json()
    assert {key: shown[key] for key in said} == said
    assert (shown["name"], shown["status"], shown["samples_count"]) == ("n", "RUNNING", 0)
    assert shown["id"] == shown["evaluation_id"] == evaluation
    assert shown["environment_ids"] == [entry["id"] for entry in shown["environments"]]
    assert shown["viewer_url"].endswith(f"/dashboard/evaluations/{evaluation}")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"environments": [{"id": "x"}]}, 422),
        ({"name": "", "run_id": "r"}, 422),
        ({"name": "n"}, 422),
        ({"name": "n", "environments": []}, 422),
        ({"name": "n", "environments": [{"name": "gsm8k"}]}, 422),
        ({"name": "n", "environments": [{"id": "nobody"}]}, 404),
        ({"name": "n", "run_id": "r", "metadata": []}, 422),
        ({"name": "n", "run_id": "r", "tags": None}, 422),
    ],
)
def test_a_wrong_creation_is_refused_and_creates_nothing(api, body, status):
    before = api.get("/evaluations/").json()["total"]
    answer = api.post("/evaluations/", json=body)
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)
    assert api.get("/evaluations/").json()["total"] == before


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"metadata": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"a":1e999}',
    ],
)
def test_a_body_that_is_no_json_object_is_a_422_everywhere(api, new_evaluation, body):
    evaluation = new_evaluation(api)
    calls = [
        ("POST", "/environmentshub/resolve"),
        ("POST", "/environmentshub/lookup"),
        ("POST", "/evaluations/"),
        ("PUT", f"/evaluations/{evaluation}"),
        ("POST", f"/evaluations/{evaluation}/samples"),
        ("POST", f"/evaluations/{evaluation}/finalize"),
    ]
    for method, path in calls:
        answer = api.request(method, path, content=body)
        assert answer.status_code == 422, (method, path)
        assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize("depth", [*range(244, 258), 500])
def test_deep_json_is_stored_and_listed_or_refused(api, new_evaluation, depth):
    deep = json.loads("[" * depth + "]" * depth)
    evaluation = new_evaluation(api, suite_id=f"deep-{depth}")
    answers = [
        api.put(f"/evaluations/{evaluation}", json={"metadata": {"deep": deep}}),
        api.post(f"/evaluations/{evaluation}/samples", json={"samples": [{"deep": deep}]}),
    ]
    assert {answer.status_code for answer in answers} <= {200, 422}
    listed = api.get("/evaluations/", params={"suite_id": f"deep-{depth}"}).json()["evaluations"]
    stored = listed[0]["metadata"] is not None
    assert stored == answers[0].is_success
    assert stored or depth > 245
    assert httpx.get(listed[0]["viewer_url"]).is_success
    assert api.get(f"/evaluations/{evaluation}/samples").is_success


def test_an_unknown_evaluation_is_a_404_for_every_call(api):
    calls = [
        api.get("/evaluations/nobody"),
        api.put("/evaluations/nobody", json={"metrics": {}}),
        api.get("/evaluations/nobody/samples"),
        api.post("/evaluations/nobody/samples", json={"samples": []}),
        api.post("/evaluations/nobody/finalize", json={}),
    ]
    assert [answer.status_code for answer in calls] == [404] * 5


def test_evaluations_are_listed_newest_first_filtered_and_paged(api, new_evaluation):
    mine = [new_evaluation(api, suite_id="list", team_id=f"t{n}", name=f"e{n}") for n in range(5)]
    page = api.get("/evaluations/", params={"suite_id": "list", "skip": 1, "limit": 2}).json()
    assert [item["evaluation_id"] for item in page["evaluations"]] == [mine[3], mine[2]]
    assert (page["total"], page["skip"], page["limit"]) == (5, 1, 2)
    page = api.get("/evaluations/", params={"suite_id": "list", "team_id": "t4"}).json()
    assert [item["name"] for item in page["evaluations"]] == ["e4"]


def test_a_listing_by_environment_takes_a_name_or_a_slug(platform, api, new_evaluation):
    environment = platform.publish_environment("lab/filter")
    evaluation = new_evaluation(api, environments=[{"id": environment}])
    for name in ("filter", "lab/filter"):
        page = api.get("/evaluations/", params={"environment_name": name}).json()
        assert [item["evaluation_id"] for item in page["evaluations"]] == [evaluation]
    assert api.get("/evaluations/", params={"environment_name": "filte"}).json()["total"] == 0


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": "x"}, {"skip": -1}, {"skip": 2**64}])
def test_a_page_that_cannot_be_is_a_422(api, params):
    answer = api.get("/evaluations/", params=params)
    assert answer.status_code == 422
    assert next(iter(params)) in answer.json()["detail"]


def test_an_update_replaces_metadata_as_a_whole_and_leaves_the_rest(api, new_evaluation):
    evaluation = new_evaluation(api, metadata={"a": 1, "b": 2}, tags=["x"])
    shown = api.put(f"/evaluations/{evaluation}", json={"metadata": {"c": 3}}).json()
    assert shown["metadata"] == {"c": 3}
    assert (shown["tags"], shown["status"]) == (["x"], "RUNNING")
    assert api.get(f"/evaluations/{evaluation}").json() == shown


@pytest.mark.parametrize("status", ["FAILED", "CANCELLED"])
def test_a_status_closes_the_evaluation_once(api, new_evaluation, status):
    evaluation = new_evaluation(api, metadata={"a": 1})
    assert close(api, evaluation, status).json()["status"] == status
    again = {"status": "CANCELLED", "metadata": {"b": 2}}
    answer = api.put(f"/evaluations/{evaluation}", json=again)
    assert answer.status_code == 409
    shown = api.get(f"/evaluations/{evaluation}").json()
    assert (shown["metadata"], shown["status"]) == ({"a": 1}, status)
    assert shown["error_message"] == "it broke"
    answer = api.put(f"/evaluations/{evaluation}", json={"metadata": {"b": 2}})
    assert answer.json()["metadata"] == {"b": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "COMPLETED"},
        {"status": "RUNNING"},
        {"status": "FAILED", "error_message": "x" * 4097},
        {"metadata": "text"},
    ],
)
def test_a_wrong_update_is_a_422_and_changes_nothing(api, new_evaluation, change):
    evaluation = new_evaluation(api)
    answer = api.put(f"/evaluations/{evaluation}", json={"metrics": {"m": 1}, **change})
    assert answer.status_code == 422
    shown = api.get(f"/evaluations/{evaluation}").json()
    assert (shown["metrics"], shown["status"]) == (None, "RUNNING")


def test_an_error_message_of_the_full_length_is_kept(api, new_evaluation):
    evaluation = new_evaluation(api)
    close(api, evaluation, message="x" * 4096)
    assert api.get(f"/evaluations/{evaluation}").json()["error_message"] == "x" * 4096


def test_finalize_completes_with_the_given_metrics_and_only_once(api, new_evaluation):
    evaluation = new_evaluation(api, metrics={"old": 1})
    answer = api.post(f"/evaluations/{evaluation}/finalize", json={"metrics": {"new": 2}})
    assert answer.json()["status"] == "PROCESSING"
    shown = api.get(f"/evaluations/{evaluation}").json()
    assert (shown["status"], shown["metrics"]) == ("COMPLETED", {"new": 2})
    assert shown["finalized_at"] is not None
    assert api.post(f"/evaluations/{evaluation}/finalize", json={}).status_code == 409
    assert close(api, evaluation).status_code == 409


@pytest.mark.parametrize("content", [b"", b"{}", b'{"metrics": {}}'])
def test_finalize_without_metrics_keeps_those_that_are_there(api, new_evaluation, content):
    evaluation = new_evaluation(api, metrics={"old": 1})
    assert api.post(f"/evaluations/{evaluation}/finalize", content=content).status_code == 200
    assert api.get(f"/evaluations/{evaluation}").json()["metrics"] == {"old": 1}


def test_a_failed_evaluation_cannot_be_finalized(api, new_evaluation):
    evaluation = new_evaluation(api)
    close(api, evaluation)
    assert api.post(f"/evaluations/{evaluation}/finalize", json={}).status_code == 409
    assert status_of(api, evaluation) == "FAILED"


def test_samples_are_appended_in_order_and_a_replay_duplicates_them(api, new_evaluation):
    evaluation = new_evaluation(api)
    path = f"/evaluations/{evaluation}/samples"
    for row in ("a", "b", "a"):
        api.post(path, json={"samples": [{"sample_id": row, "deep": {"x": [None, 1.5, "é"]}}]})
    page = api.get(path, params={"page": 1, "limit": 2}).json()
    assert [row["sample_id"] for row in page["samples"]] == ["a", "b"]
    assert page["samples"][0]["deep"] == {"x": [None, 1.5, "é"]}
    assert (page["total"], page["page"], page["limit"], page["has_more"]) == (3, 1, 2, True)
    page = api.get(path, params={"page": 2, "limit": 2}).json()
    assert [row["sample_id"] for row in page["samples"]] == ["a"]
    assert page["has_more"] is False
    assert api.get(f"/evaluations/{evaluation}").json()["samples_count"] == 3


@pytest.mark.parametrize("body", [{}, {"samples": {}}, {"samples": [{"a": 1}, 2]}])
def test_samples_that_are_no_list_of_objects_are_refused_as_a_whole(api, new_evaluation, body):
    evaluation = new_evaluation(api)
    assert api.post(f"/evaluations/{evaluation}/samples", json=body).status_code == 422
    assert api.get(f"/evaluations/{evaluation}/samples").json()["total"] == 0


def test_samples_over_25_mib_are_a_413_and_up_to_it_are_stored(api, new_evaluation):
    evaluation = new_evaluation(api)
    path = f"/evaluations/{evaluation}/samples"
    frame = b'{"samples":[{"x":"%s"}]}'
    room = 25 * 1024 * 1024 - len(frame % b"")
    assert api.post(path, content=frame % (b"y" * (room + 1))).status_code == 413
    assert api.get(path).json()["total"] == 0
    assert api.post(path, content=frame % (b"y" * room)).status_code == 200
    assert api.get(f"/evaluations/{evaluation}").json()["samples_count"] == 1


def test_a_lower_limit_makes_a_413_cheap(connect, new_evaluation):
    with LocalPlatform(limits=Limits(json_body=1000)) as platform:
        api = connect(platform)
        evaluation = new_evaluation(api)
        body = {"samples": [{"x": "y" * 1000}]}
        assert api.post(f"/evaluations/{evaluation}/samples", json=body).status_code == 413


def test_samples_for_a_closed_evaluation_are_accepted_unless_the_mode_refuses(
    platform, connect, new_evaluation
):
    with LocalPlatform(closed_samples="refuse") as refusing:
        answers = {}
        for name, one in (("accept", platform), ("refuse", refusing)):
            api = connect(one)
            evaluation = new_evaluation(api)
            api.post(f"/evaluations/{evaluation}/finalize", json={})
            body = {"samples": [{"sample_id": "late"}]}
            answers[name] = api.post(f"/evaluations/{evaluation}/samples", json=body).status_code
            stored = api.get(f"/evaluations/{evaluation}").json()["samples_count"]
            assert stored == (1 if name == "accept" else 0)
    assert answers == {"accept": 200, "refuse": 409}


def test_a_platform_that_refuses_statuses_refuses_the_whole_update(connect, new_evaluation):
    with LocalPlatform(status_updates="refuse") as platform:
        api = connect(platform)
        evaluation = new_evaluation(api)
        body = {"status": "FAILED", "metrics": {"m": 1}}
        assert api.put(f"/evaluations/{evaluation}", json=body).status_code == 422
        shown = api.get(f"/evaluations/{evaluation}").json()
        assert (shown["status"], shown["metrics"]) == ("RUNNING", None)
        assert api.put(f"/evaluations/{evaluation}", json={"metrics": {}}).status_code == 200


def test_a_platform_that_ignores_statuses_stores_the_rest(connect, new_evaluation):
    with LocalPlatform(status_updates="ignore") as platform:
        api = connect(platform)
        evaluation = new_evaluation(api)
        body = {"status": "FAILED", "error_message": "x", "metrics": {"m": 1}}
        assert api.put(f"/evaluations/{evaluation}", json=body).status_code == 200
        shown = api.get(f"/evaluations/{evaluation}").json()
        assert (shown["status"], shown["error_message"]) == ("RUNNING", None)
        assert shown["metrics"] == {"m": 1}


@pytest.mark.parametrize("key", ["wrong", "schlüssel"])
def test_a_wrong_key_is_a_401_in_the_form_of_each_api(platform, connect, key):
    wrong = connect(platform)
    headers = {"Authorization": f"Bearer {key}".encode()}
    answer = wrong.get("/evaluations/", headers=headers)
    assert answer.status_code == 401
    assert isinstance(answer.json()["detail"], str)
    answer = wrong.get("/traces", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthenticated"


def test_no_key_is_a_401_even_for_a_large_body(platform, connect):
    nobody = connect(platform)
    del nobody.headers["Authorization"]
    assert nobody.post("/evaluations/", content=b"x" * 40_000_000).status_code == 401


def test_samples_of_many_clients_at_once_all_arrive_in_their_blocks(
    platform, connect, api, new_evaluation
):
    evaluation = new_evaluation(api)

    def push(writer):
        client = connect(platform)
        for block in range(5):
            rows = [{"writer": writer, "block": block, "row": row} for row in range(20)]
            body = {"samples": rows}
            assert client.post(f"/evaluations/{evaluation}/samples", json=body).is_success

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(push, range(8)))
    page = api.get(f"/evaluations/{evaluation}/samples", params={"limit": 1000}).json()
    assert page["total"] == 8 * 5 * 20
    rows = page["samples"]
    for start in range(0, len(rows), 20):
        block = rows[start : start + 20]
        assert len({(row["writer"], row["block"]) for row in block}) == 1
        assert [row["row"] for row in block] == list(range(20))
