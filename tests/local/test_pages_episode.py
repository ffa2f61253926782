"""The page of one episode, whatever form its record has and wherever it is stored."""

import json
import re

import httpx
import pytest
from page_support import links, page_of, section_of, table_of, text_of
from support import DATA, REAL_RUNS, episodes_of, expected_rows

from prefect_prime.records import episode


@pytest.fixture
def upload(api, post_traces):
    """``upload(evaluation, records, ...)`` sends them to Prime Traces as that run's."""

    def sent(evaluation, records, **headers):
        for record in records:
            for each in (record, *record.get("traces", ())):
                each["run"] = {**each.get("run", {}), "id": evaluation}
        answer = post_traces(api, records, **headers)
        assert answer.is_success, answer.text
        return records

    return sent


def renamed(episodes, prefix):
    """With ids of their own: another test has stored these already."""
    for one in episodes:
        one["id"] = f"{prefix}-{one['id']}"
        for trace in one["traces"]:
            trace["id"] = f"{prefix}-{trace['id']}"
    return episodes


def episode_of(evaluation, **query):
    return page_of(evaluation, f"/episode?{httpx.QueryParams(query)}")


def conversation(page):
    """Each message as its role, number and text."""
    return [text_of(part) for part in re.findall(r"<article[^>]*>(.*?)</article>", page, re.DOTALL)]


@pytest.mark.parametrize("run", REAL_RUNS, ids=lambda folder: folder.name)
def test_every_message_of_a_real_run_is_on_the_page_of_its_episode(
    api, new_evaluation, read, store_rows, run
):
    rows = expected_rows(run)
    evaluation = new_evaluation(api)
    store_rows(evaluation, *rows)
    for position, row in enumerate(rows):
        page = read(episode_of(evaluation, row=position))
        shown = conversation(page)
        traces = row["info"]["native_wrapper"]["traces"]
        said = [node["message"] for trace in traces for node in trace["nodes"]]
        assert len(shown) == len(said)
        for message, text in zip(said, shown, strict=True):
            assert text.startswith(message["role"])
            plain = str(message.get("content") or "").translate({0: "␀", 0x1B: "␛"})
            assert " ".join(plain.split()) in text
        assert links(page, "As stored")


def test_agents_stand_one_after_the_other_with_their_own_rewards(
    api, new_evaluation, read, store_episodes
):
    evaluation = new_evaluation(api)
    store_episodes(evaluation, episodes_of(DATA / "multi"))
    page = read(episode_of(evaluation, row=2))
    text = text_of(page)
    assert "2 agents" in text
    assert "solver 1.2 agent_completed 5" in text
    assert "critic not trained 0 agent_completed 2" in text
    assert conversation(section_of(page, "agent-1")) == [
        "system 1 You add.",
        "user 2 TOOL: what is 2 + 3?",
        'assistant 3 calls add call_1 { "a": 2, "b": 3 }',
        "tool add 4 5",
        "assistant 5 5",
    ]
    assert conversation(section_of(page, "agent-2")) == [
        "user 1 Judge this reply: 5",
        "assistant 2 5",
    ]
    assert "short 1 × 0.2" in text  # noqa: RUF001 - the page's own sign
    for stage in ("boot", "setup", "agent", "finalize", "scoring"):
        assert f"{stage} " in text


def test_a_branch_is_told_from_where_it_left_the_first(api, new_evaluation, read, store_episodes):
    one = episode([{"role": "user", "content": "root"}], rewards=1.0)
    nodes = [(None, "root"), (0, "left"), (1, "left end"), (0, "right"), (None, "apart")]
    one["traces"][0]["nodes"] = [
        {"parent": parent, "message": {"role": "user", "content": text}} for parent, text in nodes
    ]
    evaluation = new_evaluation(api)
    store_episodes(evaluation, [one])
    page = read(episode_of(evaluation, row=0))
    text = text_of(page)
    assert "Branch 1 of 3 user 1 root user 2 left user 3 left end" in text
    assert "Branch 2 of 3, after message 1 user 4 right" in text
    assert "Branch 3 of 3 user 5 apart" in text


@pytest.mark.parametrize("parents", [[0], [1, 0], [5, -1, None, "x", True], [None, 2, 1]])
def test_a_tree_that_is_none_shows_each_message_once(
    api, new_evaluation, read, store_rows, parents
):
    nodes = [
        {"parent": parent, "message": {"role": "user", "content": f"message {number}"}}
        for number, parent in enumerate(parents)
    ]
    trace = {"id": "t", "nodes": nodes}
    wrapper = {"id": "e", "traces": [trace]}
    evaluation = new_evaluation(api)
    store_rows(evaluation, {"sample_id": "e", "info": {"native_wrapper": wrapper}})
    shown = conversation(read(episode_of(evaluation, row=0)))
    expected = sorted(f"user {n + 1} message {n}" for n in range(len(parents)))
    assert sorted(shown) == expected


def test_errors_show_their_type_message_and_traceback(api, new_evaluation, read, store_episodes):
    evaluation = new_evaluation(api)
    half = episodes_of(DATA / "multi-half")[:1]
    store_episodes(evaluation, [*episodes_of(DATA / "errors"), *half])
    scoring = read(episode_of(evaluation, row=8))
    assert "ERROR" in scoring
    assert "TaskError task ToyTask scoring: RuntimeError: reward blew up Traceback" in text_of(
        scoring
    )
    before_the_first = text_of(read(episode_of(evaluation, row=12)))
    assert "ProviderError" in before_the_first
    assert "No message: it ended before the first." in before_the_first
    of_the_episode = text_of(read(episode_of(evaluation, row=20)))
    assert "Errors of the episode EnvError ToyMultiEnv.run(): RuntimeError" in of_the_episode


def test_rollouts_and_neighbours_are_a_click_away(api, new_evaluation, read, store_episodes):
    evaluation = new_evaluation(api)
    store_episodes(evaluation, episodes_of(DATA / "clean"))
    page = read(episode_of(evaluation, row=2))
    assert "Rollouts of this example 1.2 1.2" in text_of(page)
    (before,) = links(page, "Sample 2")
    (after,) = links(page, "Sample 4")
    assert "Example 0 rollout 2" in text_of(read(page_of(evaluation, f"/episode{before}")))
    assert "Example 1 rollout 2" in text_of(read(page_of(evaluation, f"/episode{after}")))
    assert not links(read(episode_of(evaluation, row=0)), "← Sample")
    assert not links(read(episode_of(evaluation, row=11)), "→")


def test_the_json_is_what_was_stored(fetch, api, new_evaluation, read, store_rows):
    row = expected_rows(DATA / "multi")[0]
    evaluation = new_evaluation(api)
    store_rows(evaluation, row)
    page = read(episode_of(evaluation, row=0))
    (address,) = links(page, "As stored")
    answer = fetch(address)
    assert answer.json() == row
    assert answer.headers["content-type"] == "application/json"
    assert "&#34;native_trace_index&#34;: 0" in page


def test_a_large_episode_is_cut_in_the_page_and_whole_in_its_json(
    fetch, api, new_evaluation, read, store_rows
):
    said = [{"role": "user", "content": "long " * 10_000}]
    said += [{"role": "assistant", "content": f"m{n}"} for n in range(1_500)]
    evaluation = new_evaluation(api)
    store_rows(evaluation, {"sample_id": "s", "completion": said})
    page = read(episode_of(evaluation, row=0))
    text = text_of(page)
    assert "30,000 more characters" in text
    assert "501 more messages" in text
    assert len(page) < 1_000_000
    (address,) = links(page, "As stored")
    assert fetch(address).json()["completion"] == said


def test_an_episode_in_rows_of_one_trace_each_is_put_together(
    api, new_evaluation, read, store_rows
):
    rows = [
        {
            "sample_id": f"trace-{agent}",
            "episode_id": "too-large",
            "agent": agent,
            "completion": [{"role": "assistant", "content": f"by {agent}"}],
            "reward": 0.5,
        }
        for agent in ("solver", "critic")
    ]
    evaluation = new_evaluation(api)
    store_rows(evaluation, *rows)
    for query in ({"row": 0}, {"row": 1}, {"id": "too-large"}):
        page = read(episode_of(evaluation, **query))
        assert conversation(page) == ["assistant 1 by solver", "assistant 1 by critic"]


def test_a_v0_row_with_two_branches_tells_their_common_start_once(
    api, new_evaluation, read, store_rows
):
    def path(*texts):
        return {"messages": [{"role": "user", "content": text} for text in texts]}

    evaluation = new_evaluation(api)
    store_rows(evaluation, {"sample_id": "s", "trajectory": [path("a", "b"), path("a", "c"), 1]})
    page = read(episode_of(evaluation, row=0))
    assert conversation(page) == ["user 1 a", "user 2 b", "user 3 c"]
    assert "Branch 2 of 2, after message 1" in text_of(page)


@pytest.mark.parametrize(
    "identifier", ["..", "a/b?c=d#e&f", "ünïcode \u202e", "x" * 2_000, "%2e%2e"]
)
def test_any_id_has_a_page(api, new_evaluation, read, store_rows, identifier):
    evaluation = new_evaluation(api)
    store_rows(evaluation, {"sample_id": identifier, "prompt": "found it"})
    assert "found it" in read(episode_of(evaluation, id=identifier))


def test_an_evaluation_without_samples_is_read_from_its_traces(api, new_evaluation, read, upload):
    evaluation = new_evaluation(api)
    upload(evaluation, renamed(episodes_of(DATA / "errors"), "only"), X_Prime_Line_Format="episode")
    page = read(page_of(evaluation))
    text = text_of(page)
    assert "0 stored, 20 with what only Prime Traces has" in text
    assert len(table_of(page)) == 20
    assert "ProviderError × 6" in text  # noqa: RUF001 - the page's own sign
    assert "10 examples" in text
    opened = read(links(page, "Open one, example 1")[0])
    assert "reward blew up" in opened
    assert "user 2 What is 1 + 3?" in text_of(opened)


def test_episodes_that_ended_before_a_trace_are_told_beside_the_samples(
    api, new_evaluation, read, upload, store_episodes
):
    evaluation = new_evaluation(api)
    whole = renamed(episodes_of(DATA / "clean"), "beside")
    empty = renamed(episodes_of(DATA / "multi-empty"), "beside")
    upload(evaluation, [*whole, *empty], X_Prime_Line_Format="episode")
    store_episodes(evaluation, whole)
    page = read(page_of(evaluation))
    text = text_of(page)
    assert "12 stored, 15 with what only Prime Traces has" in text
    assert "EnvError × 3" in text  # noqa: RUF001 - the page's own sign
    opened = text_of(read(links(page, "Open one")[0]))
    assert "Errors of the episode EnvError ToyMultiEnv.run(): ValueError" in opened
    assert "No agent ran." in opened


def test_bare_traces_are_rollouts_too(fetch, api, new_evaluation, read, upload):
    evaluation = new_evaluation(api)
    traces = [one["traces"][0] for one in renamed(episodes_of(DATA / "errors"), "bare")]
    upload(evaluation, traces)
    page = read(page_of(evaluation))
    assert len(table_of(page)) == 20
    assert "TaskError × 4" in text_of(page)  # noqa: RUF001 - the page's own sign
    opened = read(links(page, "open")[0])
    (address,) = links(opened, "As stored")
    assert fetch(address).json() in json.loads(json.dumps(traces))


def test_an_episode_of_another_evaluation_is_not_shown(fetch, api, new_evaluation, read, upload):
    owner, other = new_evaluation(api), new_evaluation(api)
    (one,) = upload(
        owner, renamed(episodes_of(DATA / "clean")[:1], "foreign"), X_Prime_Line_Format="episode"
    )
    assert "You add." in read(episode_of(owner, id=one["id"]))
    assert fetch(episode_of(other, id=one["id"])).status_code == 404


@pytest.mark.parametrize(
    "query", ["", "?row=99", "?row=-1", "?row=x", "?row=" + "9" * 5_000, "?id="]
)
def test_an_episode_that_is_not_there_is_a_404(fetch, api, new_evaluation, store_rows, query):
    evaluation = new_evaluation(api)
    store_rows(evaluation, {"reward": 1.0})
    for path in ("/episode", "/episode.json"):
        answer = fetch(page_of(evaluation, path + query))
        assert answer.status_code == 404
        assert "There is no such episode here." in answer.text
