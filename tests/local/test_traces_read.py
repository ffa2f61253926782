import json

import pytest
from prime_traces import LineFormat
from prime_traces.exceptions import NotFoundError, ValidationRejectedError
from traces_support import at, names, trace


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
