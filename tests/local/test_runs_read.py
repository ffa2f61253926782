"""Episodes and runs as they are read back, and what is deleted."""

import json

import pytest
from prime_traces import LineFormat
from prime_traces.exceptions import NotFoundError
from traces_support import START, at, names, trace


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
