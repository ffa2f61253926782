"""Whatever a producer writes is text, and the browser is told to take it for nothing else."""

import base64
import hashlib
import html.parser
import re
import urllib.parse

import chromium
import pytest
from page_support import fail, page_of
from support import DATA, episodes_of, expected_summary

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"</pre></style></title>"
LONG = "W" * 3_000
RTL = "\u202eevil עברית "
#: What pages consist of: anything else came from a producer.
TAGS = """
html head meta title style body header div a b bdi span main h1 h2 h3 p form label input select
option button section nav table thead tbody tr th td time dl dt dd svg rect line text pre details
summary article img br
"""
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)


class Structure(html.parser.HTMLParser):
    """The tags of a page, its attributes' names and its addresses."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.addresses = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in {"href", "src", "action"}:
                self.addresses.append(value)


@pytest.fixture(scope="module")
def hostile(api):
    """An evaluation whose every text is hostile, and one before it to be compared with."""
    answer = api.post("/environmentshub/resolve", json={"name": SCRIPT.replace("/", "|") + RTL})
    environment = {"id": answer.json()["data"]["id"]}

    def create():
        body = {
            "name": RTL + SCRIPT + LONG,
            "environments": [environment],
            "model_name": SCRIPT + LONG,
            "framework": SCRIPT,
            "description": SCRIPT,
            "tags": [SCRIPT, LONG, RTL],
            "metrics": {"avg_reward": 0.5, "avg_metrics": {SCRIPT: 1e300, LONG: -1, RTL: SCRIPT}},
            "metadata": {
                SCRIPT: SCRIPT,
                "config_source": {"format": SCRIPT, "filename": SCRIPT, "text": SCRIPT + "\x00"},
                "prefect": {
                    **dict.fromkeys(("flow_run_id", "flow_run_name", "attempt"), SCRIPT),
                    "flow_run_url": "javascript:alert(1)",
                    "losses": {SCRIPT: {SCRIPT: 3}},
                },
            },
        }
        return api.post("/evaluations/", json=body).json()["evaluation_id"]

    def row(number, reward):
        error = {"type": SCRIPT, "message": SCRIPT + LONG, "traceback": SCRIPT}
        call = {"function": {"name": SCRIPT, "arguments": f'{{"a": "{LONG}"}}'}, "id": SCRIPT}
        images = [{"image_url": {"url": url}} for url in (PNG, "javascript:1", "http://x.example/")]
        return {
            "sample_id": SCRIPT + str(number),
            "example_id": SCRIPT + str(number // 2),
            "rollout_number": number % 2,
            "reward": reward,
            "agent": SCRIPT,
            "answer": SCRIPT,
            "stop_condition": SCRIPT,
            "error": error if number % 2 else None,
            "is_truncated": True,
            "metrics": {SCRIPT: SCRIPT},
            "tool_defs": [{"name": SCRIPT, "description": SCRIPT}],
            "task": {SCRIPT: SCRIPT},
            "timing": {SCRIPT: {"start": 1, "end": 2}},
            "completion": [
                {"role": SCRIPT, "content": SCRIPT + "\x00\x1b[31m" + RTL},
                {"role": "user", "content": RTL + LONG, "name": SCRIPT},
                {"role": "assistant", "content": images, "tool_calls": [call, SCRIPT, None]},
                {"role": "assistant", "content": None, "reasoning_content": SCRIPT},
            ],
        }

    before, after = create(), create()
    for evaluation, rewards in ((before, (1e308, 1)), (after, (-1e308, 0))):
        rows = [row(number, rewards[number % 2]) for number in range(4)]
        assert api.post(f"/evaluations/{evaluation}/samples", json={"samples": rows}).is_success
    api.post(f"/evaluations/{before}/finalize", json={})
    fail(api, after, (RTL + SCRIPT + LONG)[:4096])
    retry = create()
    api.put(f"/evaluations/{retry}", json={"tags": [f"retry-of:{after}", f"retry-of:{SCRIPT}"]})
    return after


def pages_of(evaluation):
    text = urllib.parse.quote(SCRIPT)
    return {
        "list": f"/?text={text[:30]}&tag={text}&page=2",
        "all": "/",
        "nothing": f"/?model={text}",
        "evaluation": page_of(evaluation),
        "selected": page_of(evaluation, f"?example={text}0&error={text}&sort=reward"),
        "nobody": page_of(urllib.parse.quote(SCRIPT.replace("/", "|"))),
        "episode": page_of(evaluation, "/episode?row=0"),
        "failed": page_of(evaluation, f"/episode?id={text}1"),
        "missing": page_of(evaluation, f"/episode?id={text}"),
    }


@pytest.mark.parametrize("name", pages_of("x"))
def test_nothing_that_a_producer_wrote_becomes_markup_or_a_foreign_link(fetch, hostile, name):
    answer = fetch(pages_of(hostile)[name])
    assert answer.status_code in {200, 404}
    structure = Structure(answer.text)
    assert structure.tags <= set(TAGS.split())
    assert not {name for name in structure.attributes if name.startswith("on") or name == "style"}
    assert {url for url in structure.addresses if not url.startswith(("/", "?", "#"))} <= {PNG}
    assert not any(url.startswith("//") for url in structure.addresses)
    assert "\x00" not in answer.text


def test_the_policy_allows_one_style_sheet_and_nothing_else(fetch):
    answer = fetch("/")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    sheet = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "img-src": "data:",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/config", "/episode.json?row=0"])
def test_what_is_served_as_it_is_cannot_run(fetch, hostile, path):
    answer = fetch(page_of(hostile, path))
    assert answer.status_code == 200
    assert not answer.headers["content-type"].startswith("text/html")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.skipif(
    chromium.EXECUTABLE is None,
    reason=f"no browser: none of {', '.join(chromium.NAMES)} is on the PATH",
)
def test_a_real_browser_shows_every_page_whole(  # noqa: PLR0917 - fixtures
    platform, api, hostile, new_evaluation, store_episodes, pytestconfig
):
    errors = new_evaluation(api, name="toy-errors", metrics=expected_summary(DATA / "errors"))
    store_episodes(errors, episodes_of(DATA / "errors"))
    fail(api, errors, "ProviderError: upstream 429")
    multi = new_evaluation(api, name="toy-multi", metrics=expected_summary(DATA / "multi"))
    store_episodes(multi, episodes_of(DATA / "multi"))
    api.post(f"/evaluations/{multi}/finalize", json={})
    hostile_pages = pages_of(hostile)
    pages = {
        "list": "/",
        "missing": hostile_pages["nobody"],
        "hostile": hostile_pages["evaluation"],
        "hostile-episode": hostile_pages["episode"],
        "errors": page_of(errors),
        "multi-episode": page_of(multi, "/episode?row=2"),
        "running": page_of(new_evaluation(api, name="just begun")),
    }
    kept = pytestconfig.rootpath / "build" / "screenshots"
    with chromium.chromium() as browser:
        for name, path in pages.items():
            browser.open(platform.url + path)
            for width, dark in ((1280, False), (390, True)):  # a desk, and a phone at night
                browser.look(width=width, height=844, dark=dark)
                problems = [one for one in browser.problems if "404" not in one]
                assert problems == [], name
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
                # The sheet was allowed, and it knows the scheme.
                background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
                assert background == ("rgb(14, 16, 20)" if dark else "rgb(247, 248, 250)"), name
                if not name.startswith("hostile"):
                    browser.screenshot(kept / f"{name}-{'phone-dark' if dark else 'light'}.png")
