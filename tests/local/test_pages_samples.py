"""The page of one evaluation: its samples in all their forms and numbers, and what changed."""
# ruff: noqa: RUF001, S608 - the pages set their own minus and multiplication signs

import html
import json
import re

import pytest
from page_support import fail, links, page_of, section_of, table_of, text_of
from support import DATA, episodes_of, expected_summary


def test_rewards_are_counted_in_a_histogram_whose_bars_select(
    api, new_evaluation, read, store_rows
):
    evaluation = new_evaluation(api)
    store_rows(evaluation, *({"reward": reward} for reward in (0, 0, 0, 1, None)))
    page = read(page_of(evaluation))
    chart = section_of(page, "rewards")
    assert re.findall(r"<title>(.*?)</title>", chart) == ["0: 3", "1: 1"]
    assert "1 without a reward" in text_of(page)
    address = html.unescape(re.search(r'<a href="([^"]*)"><title>0: 3', chart)[1])
    assert len(table_of(read(page_of(evaluation, address)))) == 3
    (unscored,) = links(page, "without a reward")
    assert len(table_of(read(page_of(evaluation, unscored)))) == 1


@pytest.mark.parametrize(
    "rewards",
    [
        [n / 7 for n in range(100)],
        [1e308, -1e308, *(float(n) for n in range(20))],
        [5e-324 * n for n in range(20)],
        [1 + n * 2**-52 for n in range(20)],
    ],
)
def test_many_different_rewards_are_counted_in_steps(
    api, new_evaluation, read, store_rows, rewards
):
    evaluation = new_evaluation(api)
    store_rows(evaluation, *({"reward": reward} for reward in rewards))
    page = read(page_of(evaluation))
    counts = [int(count) for count in re.findall(r"<title>[^<]*: (\d+)</title>", page)]
    assert 1 <= len(counts) <= 20
    assert sum(counts) == len(rewards)


def test_errors_are_counted_by_type_with_one_of_each_to_open(
    api, new_evaluation, read, store_episodes
):
    evaluation = new_evaluation(api)
    store_episodes(evaluation, episodes_of(DATA / "errors"))
    page = read(page_of(evaluation))
    text = text_of(page)
    assert text.index("ProviderError × 6") < text.index("TaskError × 4")
    assert "reward blew up" in text
    opened = read(links(page, "Open one, example 3")[0])
    assert "upstream exploded" in opened
    (selected,) = links(page, "TaskError × 4")
    assert len(table_of(read(page_of(evaluation, selected)))) == 4


def test_examples_show_their_rollouts_the_lowest_mean_first(api, new_evaluation, read, store_rows):
    evaluation = new_evaluation(api)
    samples = [(0, 1, 1.0), (0, 2, 1.0), ("b", 1, 0.0), ("b", 2, 0.5), (7, 2, 0.5), (7, 1, 0.25)]
    store_rows(
        evaluation,
        *(
            {"example_id": example, "rollout_number": rollout, "reward": reward}
            for example, rollout, reward in samples
        ),
    )
    page = read(page_of(evaluation))
    section = section_of(page, "examples")
    table = [text_of(row) for row in section.split("</tr>")[1:-1]]
    assert table == ["b 0.25 0 0.5", "7 0.375 0.25 0.5", "0 1 1 1"]
    (address,) = links(section, "0.25")
    assert "rollout 1" in text_of(read(address))


def test_a_table_of_samples_sorts_and_pages_by_its_own_links(api, new_evaluation, read, store_rows):
    evaluation = new_evaluation(api)
    rewards = [(n * 37) % 101 for n in range(101)]
    store_rows(
        evaluation, *({"example_id": n, "reward": reward} for n, reward in enumerate(rewards))
    )
    page = read(page_of(evaluation))
    assert len(table_of(page)) == 50
    (up,) = links(section_of(page, "samples"), "Reward")
    lowest = read(page_of(evaluation, up))
    (down,) = links(section_of(lowest, "samples"), "Reward ↑")
    assert " 0 – " in table_of(lowest)[0]
    highest = read(page_of(evaluation, down))
    assert " 100 – " in table_of(highest)[0]
    (last,) = links(section_of(highest, "samples"), "Last")
    end = table_of(read(page_of(evaluation, last)))
    assert len(end) == 1
    assert " 0 – " in end[0]


@pytest.mark.parametrize(
    "query",
    [
        "?page=0",
        "?page=-1",
        "?page=99999999999999999999",
        "?page=x",
        "?sort=nothing&order=sideways",
        "?low=nan&high=inf",
        "?low=x",
        "?only=magic",
        "?example=&error=&examples=99999999",
        "?baseline=nobody",
        "?live=yes",
        "?" + "&".join(["sort=reward"] * 50),
    ],
)
def test_an_address_that_makes_no_sense_still_shows_the_page(
    api, new_evaluation, read, store_rows, query
):
    evaluation = new_evaluation(api, name="still here")
    store_rows(evaluation, {"reward": 1.0})
    assert "still here" in read(page_of(evaluation, query))


def test_samples_of_any_form_are_shown(api, new_evaluation, read, store_rows):
    evaluation = new_evaluation(api)
    odd = [
        {},
        {"sample_id": 5, "example_id": {"a": 1}, "reward": "high", "completion": {"x": 1}},
        {"sample_id": "..", "prompt": "a plain prompt", "completion": "a plain reply"},
        {"reward": 10**30, "rollout_number": 2**64 - 1, "token_usage": {"prompt_tokens": 1e300}},
        {"error": "as text"},
        {"error": {"no": "type"}},
        {"timing": {"total_ms": 1e300}, "info": [], "trajectory": [1], "task": "x"},
    ]
    store_rows(evaluation, *odd)
    page = read(page_of(evaluation))
    shown = table_of(page)
    assert len(shown) == len(odd)
    assert "a plain prompt a plain reply" in shown[2]
    for position in range(len(odd)):
        read(page_of(evaluation, f"/episode?row={position}"))


def test_facts_that_are_missing_are_caught_up_with(
    platform, api, new_evaluation, read, store_episodes
):
    evaluation = new_evaluation(api)
    store_episodes(evaluation, episodes_of(DATA / "errors"))
    before = read(page_of(evaluation))
    # As a directory of an earlier version has them.
    store = platform._running.store
    with store.write() as connection:
        connection.execute("DELETE FROM sample_facts WHERE evaluation_id = ?", (evaluation,))
    after = read(page_of(evaluation))
    assert table_of(after) == table_of(before)
    assert len(table_of(after)) == 20


def test_a_hundred_thousand_samples_are_sorted_and_paged_without_reading_their_bodies(
    platform, api, new_evaluation, read
):
    evaluation = new_evaluation(api)
    count = 100_000
    numbers = "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 99999)"
    with platform._running.store.write() as connection:
        # A body that is no JSON: whoever reads one fails.
        connection.execute(
            f"{numbers} INSERT INTO samples (evaluation_id, position, body)"
            " SELECT ?, n, x'00' FROM n",
            (evaluation,),
        )
        connection.execute(
            f"{numbers} INSERT INTO sample_facts SELECT ?, n, 'e' || n, n / 10, n % 10 + 1,"
            " (n * 7919 % 100000) / 1e5, CASE WHEN n % 1000 = 0 THEN 'Rare' END, 'why', 'done',"
            " 0, n, 1, 'in', '', 'out' FROM n",
            (evaluation,),
        )
    text = text_of(page := read(page_of(evaluation, "?sort=reward&order=desc")))
    assert "100,000 stored" in text
    assert "Rare × 100" in text
    assert "10,000 examples" in text
    assert "Page 1 of 2,000" in text
    assert " 1 done " in table_of(page)[0]
    assert sum(map(int, re.findall(r"<title>[^<]*: (\d+)</title>", page.replace(",", "")))) == count
    last = read(page_of(evaluation, "?sort=tokens&order=desc&page=2000"))
    assert table_of(last)[-1].startswith("1 0 rollout 1")


# -- what changed -------------------------------------------------------------------------


def worsened(episodes, example):
    for one in episodes:
        if one["task"]["data"]["idx"] == example:
            for trace in one["traces"]:
                trace["rewards"]["correct"]["score"] = 0.0
    return episodes


def test_why_a_run_failed_and_what_got_worse_is_three_clicks_away(
    api, new_evaluation, read, store_episodes
):
    fields = {"name": "nightly-clicks", "model_name": "clicks/model", "tags": ["clicks"]}
    good = new_evaluation(api, **fields)
    store_episodes(good, episodes_of(DATA / "clean"))
    api.post(f"/evaluations/{good}/finalize", json={"metrics": expected_summary(DATA / "clean")})
    bad = new_evaluation(api, **fields)
    store_episodes(bad, worsened(episodes_of(DATA / "clean"), 3))
    api.put(f"/evaluations/{bad}", json={"metrics": {"avg_reward": 1.0}})
    fail(api, bad, "Regressed: avg_reward fell")
    listing = read("/?tag=clicks")
    assert "Regressed: avg_reward fell" in listing
    page = read(links(listing, "nightly-clicks")[0])  # the newest: the first click
    text = text_of(page)
    assert "Why it failed Regressed: avg_reward fell" in text
    assert "avg_reward 1 −0.2 from 1.2" in text
    assert "Of 6 examples in both, 1 got worse , 0 better" in text
    section = section_of(page, "changes")
    assert "3 What is 3 + 3? 1.2 0.2 −1" in text_of(section)
    (example,) = links(section, "3")  # the second
    rollouts = table_of(read(page_of(bad, example)))
    assert len(rollouts) == 2
    selected = read(page_of(bad, example))
    episode = read(links(section_of(selected, "samples"), "What is 3 + 3?")[0])
    assert "Example 3" in text_of(episode)
    (before,) = links(section, "before")
    assert before.startswith(page_of(good))
    assert len(table_of(read(before))) == 2


def test_only_completed_evaluations_of_the_same_kind_are_compared_with(
    api, new_evaluation, read, store_rows
):
    def create(name, **fields):
        answer = api.post("/environmentshub/resolve", json={"name": "compared-env"})
        reference = {"id": answer.json()["data"]["id"]}
        return new_evaluation(api, name=name, environments=[reference], **fields)

    def complete(evaluation):
        api.post(f"/evaluations/{evaluation}/finalize", json={"metrics": {"avg_reward": 0.5}})
        return evaluation

    same = complete(create("the same", model_name="m"))
    complete(new_evaluation(api, name="another environment", model_name="m"))
    other_model = complete(create("another model", model_name="n"))
    fail(api, create("a failed one", model_name="m"), "x")
    evaluation = create("this", model_name="m", metrics={"avg_reward": 0.25})
    store_rows(evaluation, {"example_id": 1, "reward": 0.25})
    complete(create("a later one", model_name="m"))
    page = read(page_of(evaluation))
    assert "Against the same , started" in text_of(page)
    section = section_of(page, "changes")
    offered = re.findall(r'<option value="([^"]*)"', section[: section.index("</select>")])
    assert offered[0] == same
    assert other_model in offered
    assert len(offered) == 3
    chosen = read(page_of(evaluation, f"?baseline={other_model}"))
    assert "Against another model , started" in text_of(chosen)
    assert "The two have no example in common." in chosen


def test_a_real_runs_page_shows_its_own_numbers(
    api, new_evaluation, read, store_episodes, real_run
):
    summary = expected_summary(real_run)
    evaluation = new_evaluation(api, name=real_run.name, metrics=summary)
    store_episodes(evaluation, episodes_of(real_run))
    page = read(page_of(evaluation))
    rows = json.loads((real_run / "expected" / "samples.json").read_bytes())
    assert len(table_of(page)) == len(rows) if rows else "No samples yet." in page
    assert f"avg_reward {summary['avg_reward']:.4g}" in text_of(page)


def test_what_has_no_reward_comes_last_in_both_directions(api, new_evaluation, read, store_rows):
    evaluation = new_evaluation(api)
    store_rows(
        evaluation, *({"answer": f"<{reward}>", "reward": reward} for reward in (None, 2, 1))
    )
    for order, expected in (("asc", "<1> <2> <None>"), ("desc", "<2> <1> <None>")):
        page = read(page_of(evaluation, f"?sort=reward&order={order}"))
        assert " ".join(re.findall(r"<\w+>", " ".join(table_of(page)))) == expected


def test_the_examples_that_fell_most_come_first(api, new_evaluation, read, store_rows):
    before, after = (new_evaluation(api, model_name="falls") for _ in range(2))
    for evaluation, rewards in ((before, (1, 1, 1, 0)), (after, (0.75, 0.25, 1, 1))):
        samples = ({"example_id": n, "reward": reward} for n, reward in enumerate(rewards))
        store_rows(evaluation, *samples)
    api.post(f"/evaluations/{before}/finalize", json={})
    section = text_of(section_of(read(page_of(after)), "changes"))
    assert "2 got worse , 1 better" in section
    assert section.endswith("1 1 0.25 −0.75 before → 0 1 0.75 −0.25 before →")


def test_a_gate_that_did_not_hold_is_told_first_and_in_the_list(api, new_evaluation, read):
    gates = [
        {"metric": "avg_reward", "verdict": "regressed", "reason": "avg_reward fell by 0.2"},
        {"metric": "avg_error", "verdict": "passed", "reason": "avg_error 0.1"},
        {"metric": "x", "verdict": "no baseline", "reason": "there is none"},
        "not a gate",
    ]
    fields = {"name": "gated", "tags": ["gated"], "metrics": {"avg_reward": 0.5}}
    evaluation = new_evaluation(api, metadata={"prefect": {"gates": gates}}, **fields)
    api.post(f"/evaluations/{evaluation}/finalize", json={})
    text = text_of(read(page_of(evaluation)))
    told = "A gate did not hold avg_reward regressed avg_reward fell by 0.2 avg_error passed"
    assert told in text
    assert text.index(told) < text.index("avg_reward 0.5")
    listing = read("/?tag=gated")
    assert "COMPLETED REGRESSED" in text_of(listing)
    held = new_evaluation(api, metadata={"prefect": {"gates": gates[1:2]}}, **fields)
    page = text_of(read(page_of(held)))
    assert "Gates avg_error passed avg_error 0.1" in page
    assert "did not hold" not in page


def test_of_two_flows_the_same_one_is_compared_with(api, new_evaluation, read, store_rows):
    def create(flow, name):
        metadata = {"prefect": {"compared_by": {"flow": flow, "model": "flows"}}}
        return new_evaluation(api, name=name, model_name="flows", metadata=metadata)

    for flow in ("nightly", "weekly"):
        api.post(f"/evaluations/{create(flow, f'the {flow} one')}/finalize", json={})
    evaluation = create("nightly", "this")
    store_rows(evaluation, {"reward": 1})
    assert "Against the nightly one , started" in text_of(read(page_of(evaluation)))
