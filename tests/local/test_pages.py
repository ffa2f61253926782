"""The list of evaluations, and how the page of one begins: how it ended and why."""

import html
import re

import httpx
import pytest
from page_support import fail, links, page_of, section_of, text_of
from support import DATA, episodes_of, expected_summary

from prefect_prime.local import LocalPlatform

# -- the list -----------------------------------------------------------------------------


def test_a_platform_without_evaluations_says_how_to_make_one():
    with LocalPlatform() as empty:
        page = httpx.get(empty.url).text
    assert "No evaluation yet." in page
    assert "@eval_flow" in page
    assert "<form" not in page


def test_the_list_tells_why_an_evaluation_failed_without_a_click(api, new_evaluation, read):
    evaluation = new_evaluation(api, name="listed-failure", tags=["listed"])
    fail(api, evaluation, "the provider was away")
    page = read("/?tag=listed")
    assert links(page, "listed-failure") == [page_of(evaluation)]
    row = text_of(page[page.index("<tbody>") :])
    assert row.startswith("listed-failure gsm8k the provider was away listed FAILED")


@pytest.fixture(scope="module")
def filtered(platform, connect):
    """Three evaluations that differ in everything that can be filtered by."""
    api = connect(platform)

    def create(environment, **fields):
        answer = api.post("/environmentshub/resolve", json={"name": environment})
        reference = {"id": answer.json()["data"]["id"]}
        answer = api.post("/evaluations/", json={"environments": [reference], **fields})
        return answer.json()["evaluation_id"]

    made = {
        "one": create("filter-env", name="filter-one", model_name="filter/a", tags=["f_1", "all"]),
        "two": create("filter-env", name="filter-two", model_name="filter/b", tags=["fx1", "all"]),
        "three": create("filter-other", name="filter-three", model_name="filter/a", tags=["all"]),
    }
    fail(api, made["three"], "100% of the disk")
    return made


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tag=all", {"one", "two", "three"}),
        ("tag=all&status=FAILED", {"three"}),
        ("tag=all&status=RUNNING", {"one", "two"}),
        ("environment=filter-env", {"one", "two"}),
        ("model=filter/a", {"one", "three"}),
        ("model=filter/a&environment=filter-env", {"one"}),
        ("tag=f_1", {"one"}),
        ("text=filter-t", {"two", "three"}),
        ("text=FILTER-ONE", {"one"}),
        ("text=f_1", {"one"}),  # a wildcard of SQL is a character of the text
        ("text=100%25+of", {"three"}),
        ("text=nothing+has+this", set()),
        ("status=&tag=all&model=", {"one", "two", "three"}),
        ("tag=all&page=nonsense", {"one", "two", "three"}),
    ],
)
def test_the_list_filters(filtered, read, query, expected):
    page = read(f"/?{query}")
    shown = {name for name, evaluation in filtered.items() if page_of(evaluation) in page}
    assert expected == shown
    assert ("No evaluation matches." in page) == (not expected)


def test_the_list_pages_and_keeps_its_filters(api, new_evaluation, read):
    made = [new_evaluation(api, name=f"paged {n}", tags=["paged"]) for n in range(51)]
    first = read("/?tag=paged")
    assert "51 match" in text_of(first)
    assert page_of(made[-1]) in first
    assert page_of(made[0]) not in first
    (address,) = links(first, "Next")
    second = read(f"/{address}")
    assert page_of(made[0]) in second
    assert page_of(made[1]) not in second


def test_what_is_not_here_is_a_page_that_leads_back(fetch):
    for path in ("", "/config", "/episode?row=0", "/episode.json?id=x"):
        answer = fetch(page_of("nobody", path))
        assert answer.status_code == 404
        assert 'href="/"' in answer.text
        assert answer.headers["content-type"].startswith("text/html")


# -- one evaluation: how it ended ---------------------------------------------------------


def test_the_url_of_a_run_opens_the_page_and_needs_no_key(fetch, api, new_evaluation):
    evaluation = new_evaluation(api, name="reached by its url")
    answer = fetch(api.get(f"/evaluations/{evaluation}").json()["viewer_url"])
    assert answer.is_success
    assert "reached by its url" in answer.text


def test_status_and_reason_come_before_all_numbers(api, new_evaluation, read, store_episodes):
    evaluation = new_evaluation(api, name="toy", metrics=expected_summary(DATA / "errors"))
    store_episodes(evaluation, episodes_of(DATA / "errors"))
    fail(api, evaluation, "ProviderError: upstream 429\nslow down")
    text = text_of(read(page_of(evaluation)))
    order = ["FAILED", "Why it failed ProviderError: upstream 429 slow down", "avg_reward 0.6"]
    order += ["avg_error 50 %", "Rewards", "Errors by type", "Examples over", "Samples 20 stored"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_a_cancelled_evaluation_without_samples_says_so(api, new_evaluation, read):
    evaluation = new_evaluation(api)
    fail(api, evaluation, "interrupted", status="CANCELLED")
    text = text_of(read(page_of(evaluation)))
    assert "Why it was cancelled interrupted" in text
    assert "It ended before its first episode was uploaded." in text
    assert "No reward was recorded." in text


def test_a_running_evaluation_looks_again_until_it_is_held_or_over(
    api, new_evaluation, read, store_rows
):
    evaluation = new_evaluation(api)
    refresh = '<meta http-equiv="refresh"'
    page = read(page_of(evaluation))
    assert refresh in page
    assert "No samples yet." in page
    store_rows(evaluation, {"reward": 1.0}, {"reward": 0.5})
    page = read(page_of(evaluation))
    assert "2 episodes so far" in text_of(page)
    assert "avg_reward 0.75" in text_of(page)  # nobody has sent metrics yet
    (hold,) = links(page, "Hold it")
    held = read(page_of(evaluation, hold))
    assert refresh not in held
    assert links(held, "Follow the run")
    api.post(f"/evaluations/{evaluation}/finalize", json={})
    assert refresh not in read(page_of(evaluation))


def test_metrics_show_at_any_depth(api, new_evaluation, read):
    metrics = {"avg_reward": 0.25, "avg_metrics": {"pass@1": 0.5, "deep": {"er": 3}}, "note": "x"}
    metrics["prime_runs"] = {"traces_episodes_written": 1234}
    evaluation = new_evaluation(api, metrics=metrics)
    text = text_of(read(page_of(evaluation)))
    for shown in ("avg_reward 0.25", "pass@1 0.5", "deep.er 3", "note x", "1,234"):
        assert shown in text


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        ("https://prefect.example/runs/flow-run/abc", True),
        ("javascript:alert(1)", False),
        ("javascript://host/%0aalert(1)", False),
        ("data:text/html,x", False),
        ("//elsewhere", False),
        (None, False),
    ],
)
def test_the_flow_run_is_linked_where_its_address_is_of_the_web(
    api, new_evaluation, read, url, is_link
):
    known = {"flow_run_id": "an-id", "flow_run_name": "bold-otter", "flow_run_url": url}
    evaluation = new_evaluation(api, metadata={"prefect": {**known, "attempt": 2}})
    page = read(page_of(evaluation))
    assert "bold-otter" in page
    assert "attempt 2" in text_of(page)
    assert (links(page, "bold-otter") == [url]) == is_link
    assert ("an-id" in text_of(page)) or is_link


def test_retries_lead_to_each_other(api, new_evaluation, read):
    first = new_evaluation(api, name="first try")
    fail(api, first, "it broke")
    second = new_evaluation(api, name="second try", tags=["nightly", f"retry-of:{first}"])
    assert links(read(page_of(first)), "second try") == [page_of(second)]
    page = read(page_of(second))
    assert page_of(first) in links(page, "first try")
    assert "it broke" in page
    assert "retry-of:" not in text_of(page)
    assert links(page, "nightly") == ["/?tag=nightly"]


def test_losses_are_told_where_there_are_any(api, new_evaluation, read):
    losses = {"traces": {"records": 0}, "samples": {"records": 3}}
    known = {"losses": losses, "rejected": 2, "dropped": 1, "torn": 0, "undelivered": True}
    lossy = text_of(read(page_of(new_evaluation(api, metadata={"prefect": known}))))
    assert "Not everything arrived samples 3 records records 2 rejected" in lossy
    assert "records 1 dropped" in lossy
    assert "some records were left undelivered" in lossy
    whole = {"losses": {"traces": {"records": 0}}, "rejected": 0, "torn": 0}
    page = read(page_of(new_evaluation(api, metadata={"prefect": whole})))
    assert "Not everything arrived" not in page


@pytest.mark.parametrize(
    "text",
    ["a = 1\n", "\n\nleading lines", "a = 1\r\nb = 2\r\n", "\ufeff# a BOM\n", "</pre><script>", ""],
)
def test_the_config_is_shown_and_served_byte_for_byte(fetch, api, new_evaluation, read, text):
    source = {"format": "toml", "text": text, "filename": "eval.toml"}
    evaluation = new_evaluation(api, metadata={"config_source": source})
    page = read(page_of(evaluation))
    section = section_of(page, "config")
    # A browser drops one line end after the tag; the template writes it.
    shown = re.search(r"<pre[^>]*>\n(.*?)</pre>", section, re.DOTALL)
    assert html.unescape(shown[1]) == text
    assert "\r" not in page  # which a browser would take for a plain line end
    raw = fetch(page_of(evaluation, "/config"))
    assert raw.content == text.encode()
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_nul_in_the_config_is_seen_and_kept(fetch, api, new_evaluation, read):
    source = {"format": "text", "text": "a\x00b\x1b[31m"}
    evaluation = new_evaluation(api, metadata={"config_source": source})
    assert "a␀b␛[31m" in read(page_of(evaluation))
    raw = fetch(page_of(evaluation, "/config"))
    assert raw.content == b"a\x00b\x1b[31m"
