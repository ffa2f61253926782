import json
from datetime import UTC, datetime

import pytest
from prime_traces import LineFormat, TracesClient
from prime_traces.exceptions import NotFoundError, ValidationRejectedError

START = 1_796_000_000


def trace(name, number=0, **fields):
    return {
        "id": name,
        "timing": {"start": START + number, "agent": {"start": START, "end": START + number + 2}},
        **fields,
    }


def at(number):
    """The moment of ``trace(..., number)``, as the client sends it."""
    return datetime.fromtimestamp(START + number, UTC).isoformat()


@pytest.fixture(scope="module")
def client(platform):
    credentials = platform.credentials
    with TracesClient(
        api_key=credentials.api_key.get_secret_value(), base_url=credentials.traces_url
    ) as connected:
        yield connected


@pytest.fixture(scope="module")
def upload(client):
    def send(records, line_format=LineFormat.TRACE, **context):
        receipts = client.upload_records(
            records, line_format=line_format, context=context or None, max_attempts=1
        )
        return receipts[0].upload_id

    return send


def names(page):
    return [item.trace_id for item in page.items]


def test_a_summary_holds_what_the_record_says(client, upload, read_run):
    episode = json.loads(read_run("errors")[0])
    member = episode["traces"][0] | {"run": {"id": "summary-run", "type": "eval"}}
    upload([{**episode, "traces": [member]}], LineFormat.EPISODE, run_type="eval", source="test")
    summary = client.get(member["id"])
    assert summary.run_id == "summary-run"
    assert summary.episode_id == episode["id"]
    assert summary.environment_id == "toy-eval"
    assert (summary.model.provider, summary.model.id) == (None, "fake-model")
    assert summary.task_id == episode["task"]["key"]
    assert summary.agent_name == "agent"
    assert (summary.score.reward, summary.score.outcome) == (1.2, "agent_completed")
    assert (summary.execution.has_error, summary.execution.is_truncated) == (False, False)
    assert summary.duration_ms == 217
    assert summary.total_tokens == 14
    assert summary.created_at.timestamp() == pytest.approx(member["timing"]["start"])
    assert summary.context == {"run_type": "eval", "source": "test"}
    assert json.loads(client.get_raw(member["id"])) == member


@pytest.mark.parametrize(
    ("fields", "reward", "has_error", "is_truncated"),
    [
        ({}, None, False, False),
        ({"rewards": {}}, None, False, False),
        ({"rewards": {"a": None}}, None, False, False),
        ({"rewards": {"a": {"score": 0.0, "weight": 1.0}}}, 0.0, False, False),
        ({"rewards": {"a": {"score": 2.0, "weight": 0.5}, "b": None, "c": 1}}, 2.0, False, False),
        ({"ok": False, "errors": [{"type": "E"}]}, None, True, False),
        ({"ok": True, "errors": [{"type": "retried"}]}, None, False, False),
        ({"errors": [{"type": "E"}]}, None, True, False),
        ({"stop_condition": "max_turns"}, None, False, True),
        ({"calls": [{"finish_reason": "length"}]}, None, False, True),
        ({"calls": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}, None, False, False),
        ({"calls": [{"finish_reason": "length"}, {"error": {"type": "E"}}]}, None, False, True),
    ],
)
def test_scores_and_endings_follow_the_record(  # noqa: PLR0917 - a table of cases
    client, upload, fields, reward, has_error, is_truncated
):
    upload([trace("scored", **fields)])
    summary = client.get("scored")
    assert summary.score.reward == reward
    assert summary.execution.has_error is has_error
    assert summary.execution.is_truncated is is_truncated


def test_the_run_comes_from_the_trace_never_from_the_envelope(client, upload):
    episode = {"id": "run-e", "run": {"id": "envelope"}, "traces": [trace("run-t")]}
    upload([episode], LineFormat.EPISODE)
    assert client.get("run-t").run_id is None
    assert client.get_episode("run-e").run_id is None
    assert client.list(run_id="envelope").items == []


def test_every_filter_selects_by_its_column(client, upload):
    one = trace(
        "filter-1",
        run={"id": "filter"},
        env={"id": "math"},
        agent={"name": "solver", "config": {"model": "lab/small"}},
        task={"key": "task-1"},
        rewards={"r": {"score": 1.0}},
        stop_condition="max_turns",
        ok=False,
    )
    two = trace("filter-2", 10, run={"id": "filter"}, rewards={"r": {"score": 0.0}}, ok=True)
    first = upload([one], source="a", **{'k"ey': "v"})
    second = upload([two], source="b")
    only_first = [
        {"environment_id": "math"},
        {"model_id": "lab/small"},
        {"model_provider": "lab"},
        {"task_id": "task-1"},
        {"reward_min": 0.5},
        {"outcome": "max_turns"},
        {"has_error": True},
        {"is_truncated": True},
        {"created_before": at(1)},
        {"context": {"source": "a"}},
        {"context": {'k"ey': "v"}},
        {"upload_id": first},
    ]
    for filters in only_first:
        assert names(client.list(run_id="filter", **filters)) == ["filter-1"], filters
    only_second = [
        {"reward_max": 0.5},
        {"has_error": False},
        {"created_after": at(10)},
        {"context": {"source": "b"}},
    ]
    for filters in only_second:
        assert names(client.list(run_id="filter", **filters)) == ["filter-2"], filters
    both = names(client.list(upload_id=[first, second]))
    assert both == ["filter-2", "filter-1"]
    assert names(client.list(run_id="filter", sort="created_at")) == ["filter-1", "filter-2"]


def test_pages_follow_each_other_without_gaps_and_newest_first(client, upload):
    upload([trace(f"page-{n}", n // 2, run={"id": "pages"}) for n in range(7)])
    page = client.list(run_id="pages", limit=3)
    assert names(page) == ["page-6", "page-5", "page-4"]
    upload([trace("page-new", 100, run={"id": "pages"})])
    rest = client.list(run_id="pages", limit=3, cursor=page.next_cursor)
    assert names(rest) == ["page-3", "page-2", "page-1"]
    last = client.list(run_id="pages", limit=3, cursor=rest.next_cursor)
    assert (names(last), last.next_cursor) == (["page-0"], None)
    assert len(list(client.iter(run_id="pages", limit=2))) == 8
    oldest = client.list(run_id="pages", limit=2, sort="created_at")
    assert names(oldest) == ["page-0", "page-1"]
    page = client.list(run_id="pages", limit=2, sort="created_at", cursor=oldest.next_cursor)
    assert names(page) == ["page-2", "page-3"]


@pytest.mark.parametrize("cursor", ["x", "e30=", "bnVsbA==", "WyJ4Il0="])
def test_a_cursor_of_other_filters_or_none_at_all_is_refused(client, upload, cursor):
    upload([trace(f"cursor-{n}", run={"id": "cursor"}) for n in range(2)])
    foreign = client.list(run_id="cursor", limit=1).next_cursor
    for wrong in (cursor, foreign):
        with pytest.raises(ValidationRejectedError) as caught:
            client.list(limit=1, cursor=wrong)
        assert caught.value.code == "invalid_cursor"


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/traces", {"limit": "0"}),
        ("/traces", {"limit": "101"}),
        ("/traces", {"limit": "many"}),
        ("/traces", {"reward_min": "high"}),
        ("/traces", {"reward_min": "nan"}),
        ("/traces", {"has_error": "yes"}),
        ("/traces", {"created_after": "yesterday"}),
        ("/traces", {"sort": "reward"}),
        ("/traces", {"run": "typo"}),
        ("/traces", [("run_id", "a"), ("run_id", "b")]),
        ("/episodes", {"run_step": "1" * 30}),
        ("/runs", {"limit": "-1"}),
        ("/runs/any/search", {"query": "ab"}),
        ("/runs/any/search", {"query": "abc", "field": "role"}),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused(api, path, params):
    answer = api.get(path, params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_filter"


def test_what_is_not_there_is_a_404_with_its_code(client):
    reads = {
        "trace_not_found": [
            client.get,
            client.get_raw,
            client.list_nodes,
            client.list_calls,
            client.delete,
        ],
        "episode_not_found": [
            client.get_episode,
            client.get_episode_raw,
            client.list_episode_traces,
        ],
        "run_not_found": [client.get_run, client.delete_run],
    }
    for code, methods in reads.items():
        for method in methods:
            with pytest.raises(NotFoundError) as caught:
                method("nobody")
            assert caught.value.code == code


@pytest.mark.parametrize("name", ["a b", "ä?#%", "..", "x" * 300, "a:b+c"])
def test_an_id_of_any_characters_but_a_slash_is_found(client, upload, name):
    upload([trace(name)])
    assert client.get(name).trace_id == name


def test_nodes_are_listed_in_order_filtered_and_paged(client, upload):
    nodes = [
        {"message": {"role": "system", "content": "s"}, "timestamp": 1.5},
        {"parent": 0, "message": {"role": "user", "content": [{"type": "text", "text": "q"}]}},
        {
            "parent": 1,
            "sampled": True,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}],
            },
        },
        {"parent": 2, "message": {"role": "tool", "tool_call_id": "c", "content": "42"}},
        {},
    ]
    upload([trace("nodes", nodes=nodes)])
    page = client.list_nodes("nodes")
    assert [node.node_idx for node in page.items] == [0, 1, 2, 3, 4]
    assert (page.next_cursor, page.partial_index) == (None, False)
    answer = page.items[2]
    assert (answer.parent_idx, answer.sampled, answer.message.reasoning_content) == (1, True, "hm")
    assert answer.message.tool_calls == nodes[2]["message"]["tool_calls"]
    assert page.items[3].message.tool_call_id == "c"
    assert page.items[0].timestamp == 1.5
    only = client.list_nodes("nodes", role=["user", "tool"])
    assert [node.node_idx for node in only.items] == [1, 3]
    assert [node.node_idx for node in client.list_nodes("nodes", sampled=True).items] == [2]
    assert [node.node_idx for node in client.list_nodes("nodes", after=2).items] == [3, 4]
    first = client.list_nodes("nodes", limit=3)
    rest = client.list_nodes("nodes", limit=3, cursor=first.next_cursor)
    assert [node.node_idx for node in rest.items] == [3, 4]
    with pytest.raises(ValidationRejectedError):
        client.list_nodes("nodes", after=1, limit=3, cursor=first.next_cursor)


def test_calls_are_listed_in_order_filtered_and_paged(client, upload):
    calls = [
        {
            "node": 2,
            "model": "m",
            "endpoint": "/chat",
            "finish_reason": "stop",
            "time": {"start": 1.0, "end": 2.0},
        },
        {"model": "judge", "finish_reason": "length"},
        {"model": "m", "error": {"type": "E"}},
    ]
    upload([trace("calls", calls=calls)])
    page = client.list_calls("calls")
    first = page.items[0]
    assert (first.call_idx, first.node_idx, first.endpoint) == (0, 2, "/chat")
    assert (first.time_start, first.time_end) == (1.0, 2.0)
    assert [call.call_idx for call in client.list_calls("calls", model=["m"]).items] == [0, 2]
    some = client.list_calls("calls", finish_reason=["length", "stop"])
    assert [call.call_idx for call in some.items] == [0, 1]
    page = client.list_calls("calls", limit=2)
    rest = client.list_calls("calls", limit=2, cursor=page.next_cursor)
    assert [call.call_idx for call in rest.items] == [2]


def test_an_episode_keeps_its_own_error_beside_its_traces(client, upload, read_run):
    episode = json.loads(read_run("multi-half")[0])
    upload([episode], LineFormat.EPISODE)
    detail = client.get_episode(episode["id"])
    assert (detail.has_error, detail.outcome) == (True, "error")
    assert detail.error.type == "EnvError"
    assert detail.environment_id == "toy-multi-env+toy-eval"
    assert (detail.traces.trace_count, detail.traces.any_trace_error) == (1, False)
    assert detail.traces.agent_names == ["solver"]
    envelope = json.loads(client.get_episode_raw(episode["id"]))
    assert envelope == {**episode, "traces": [member["id"] for member in episode["traces"]]}
    assert names(client.list_episode_traces(episode["id"])) == envelope["traces"]


def test_an_episode_without_traces_is_stored_with_an_empty_aggregate(client, upload, read_run):
    episode = json.loads(read_run("multi-empty")[0])
    upload([episode], LineFormat.EPISODE)
    detail = client.get_episode(episode["id"])
    assert (detail.traces.trace_count, detail.traces.agent_names) == (0, [])
    assert detail.has_error


def test_episodes_are_filtered_by_their_own_fields_and_their_traces(client, upload):
    def episode(number, step=None, **fields):
        run = {"id": "e-run", "type": "train"} | ({"work": {"step": step}} if step else {})
        member = trace(f"e-t{number}", number, run=run, ok=True)
        return {"id": f"e-{number}", "ok": True, "traces": [member], **fields}

    first = upload([episode(1, 3, env={"id": "math"})], LineFormat.EPISODE, source="a")
    upload(
        [episode(2, 5), episode(3, ok=False, errors=[{"type": "E", "message": "m"}])],
        LineFormat.EPISODE,
        source="b",
    )

    def found(**filters):
        return [item.episode_id for item in client.list_episodes(run_id="e-run", **filters).items]

    assert found() == ["e-3", "e-2", "e-1"]
    assert found(environment_id="math") == ["e-1"]
    assert found(upload_id=[first]) == ["e-1"]
    assert found(outcome="error") == found(has_error=True) == ["e-3"]
    assert found(run_step=5) == found(step_min=4) == ["e-2"]
    assert found(step_max=4) == ["e-1"]
    assert found(step_min=4, context={"source": "a"}) == []
    assert found(context={"source": "b"}) == ["e-3", "e-2"]
    assert found(created_after=at(3)) == ["e-3"]
    assert found(created_before=at(2)) == ["e-1"]
    page = client.list_episodes(run_id="e-run", limit=2)
    rest = client.list_episodes(run_id="e-run", limit=2, cursor=page.next_cursor)
    assert [item.episode_id for item in rest.items] == ["e-1"]
    filtered = client.list_episode_traces("e-1", has_error=False, context={"source": "a"})
    assert names(filtered) == ["e-t1"]
    assert names(client.list_episode_traces("e-1", has_error=True)) == []


def test_a_run_is_the_sum_of_its_traces(client, upload):
    def members(number, **fields):
        return trace(f"sum-{number}", number, run={"id": "sum"}, **fields)

    first = members(1, rewards={"r": {"score": 1.0}}, env={"id": "math"}, ok=True)
    second = members(2, rewards={"r": {"score": 0.0}}, ok=False)
    third = members(3, agent={"config": {"model": "m"}})
    episodes = [{"id": "sum-e", "traces": [first, second]}]
    upload(episodes, LineFormat.EPISODE, run_type="train", kept="no")
    upload([third], run_type="eval")
    run = client.get_run("sum")
    assert (run.trace_count, run.episode_count, run.avg_reward) == (3, 1, 0.5)
    assert (run.environment_ids, run.model_ids, run.has_error) == (["math"], ["m"], True)
    assert run.context == {"run_type": "eval"}
    assert run.first_trace_created_at.timestamp() == START + 1
    assert run.last_trace_created_at.timestamp() == START + 3
    assert (run.step_min, run.step_max, run.step_count) == (None, None, 0)
    assert client.list_run_steps("sum").items == []


def test_runs_are_listed_by_arrival_type_uploader_and_window(client, upload):
    for number, run_type in enumerate(["eval", "train", "other"]):
        upload([trace(f"runs-{number}", run={"id": f"runs-{run_type}"})], run_type=run_type)

    def found(**filters):
        runs = [item.run_id for item in client.list_runs(**filters).items]
        return [run for run in runs if run.startswith("runs-")]

    assert found() == ["runs-other", "runs-train", "runs-eval"]
    assert found(run_type="eval") == ["runs-eval"]
    assert found(run_type=["train", "unknown"]) == ["runs-other", "runs-train"]
    user = client.get_run("runs-eval").first_user_id
    assert found(created_by=user) == found()
    assert found(created_by="somebody") == []
    assert found(created_before=at(-1)) == []
    first = client.list_runs(limit=1)
    second = client.list_runs(limit=1, cursor=first.next_cursor)
    assert first.items[0].run_id != second.items[0].run_id


def test_the_steps_of_a_training_run_are_listed_oldest_first(client, upload):
    def at(name, step, score):
        run = {"id": "train", "type": "train", "work": {"type": "train", "step": step}}
        return trace(name, run=run, rewards={"r": {"score": score}})

    upload([at("s1", 7, 1.0), at("s2", 2, 0.0), at("s3", 7, 0.0)])
    steps = client.list_run_steps("train")
    assert (steps.step_min, steps.step_max, steps.step_count) == (2, 7, 2)
    assert [(one.step, one.trace_count, one.avg_reward) for one in steps.items] == [
        (2, 1, 0.0),
        (7, 2, 0.5),
    ]


def test_search_finds_literal_text_in_a_runs_messages(client, upload):
    def said(name, *messages, **fields):
        nodes = [{"message": message} for message in messages]
        return trace(name, run={"id": "search"}, nodes=nodes, **fields)

    user = {"role": "user", "content": "ä" * 200 + "Needle here"}
    tool = {"role": "assistant", "tool_calls": [{"name": "needle_tool"}]}
    thought = {"role": "assistant", "content": "no", "reasoning_content": "a Needle?"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Needle"}]}
    upload([said("se-1", user, tool), said("se-2", thought, parts, ok=False)])

    def found(query, **filters):
        page = client.search(query, run_id="search", **filters)
        return [(item.trace_id, item.node_idx) for item in page.items]

    assert found("Needle") == [("se-1", 0), ("se-2", 1)]
    assert found("needle") == []
    assert found("needle_tool", field="tool_calls") == [("se-1", 1)]
    assert found("Needle", field="reasoning_content") == [("se-2", 0)]
    assert found("Needle", has_error=True) == [("se-2", 1)]
    assert found("Needle", role="assistant") == []
    page = client.search("Needle", run_id="search", limit=1)
    match = page.items[0]
    assert (match.match_start, match.match_end, match.representation) == (200, 206, "text")
    start = match.match_start - match.excerpt_start
    assert match.excerpt[start : start + 6] == "Needle"
    assert page.coverage.examined_traces == 2
    rest = client.search("Needle", run_id="search", limit=1, cursor=page.next_cursor)
    assert [(item.trace_id, item.representation) for item in rest.items] == [("se-2", "json")]
    assert (rest.next_cursor, rest.coverage) == (None, None)


def test_a_deleted_trace_is_gone_and_can_be_uploaded_again(client, upload):
    record = trace("gone", run={"id": "gone-run"})
    upload([record, trace("stays")])
    with pytest.raises(NotFoundError):
        client.delete("gone", created_at="2020-01-01T00:00:00Z")
    client.delete("gone", created_at=client.get("gone").created_at.isoformat())
    with pytest.raises(NotFoundError):
        client.get("gone")
    with pytest.raises(NotFoundError):
        client.get_raw("gone")
    assert client.get("stays").trace_id == "stays"
    upload([record, trace("stays")])
    assert client.get("gone").trace_id == "gone"


def test_deleting_a_run_deletes_its_traces_and_leaves_episodes(client, upload):
    member = trace("dr-1", run={"id": "dr"})
    upload([{"id": "dr-e", "traces": [member]}], LineFormat.EPISODE)
    client.delete_run("dr")
    assert client.list(run_id="dr").items == []
    assert client.get_episode("dr-e").traces.trace_count == 0
    with pytest.raises(NotFoundError):
        client.delete_run("dr")


def test_deleting_needs_a_run(api):
    answer = api.delete("/traces")
    assert answer.json()["error"]["code"] == "invalid_filter"
