"""The final summary as text: what stands where, and that nothing in it can break out."""

from dataclasses import replace
from typing import Any

import pytest

from prefect_prime.endings import Ending
from prefect_prime.environments import EnvironmentRef
from prefect_prime.failures import Failure
from prefect_prime.flows import markdown
from prefect_prime.flows.closing import Closing
from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.summary import description
from prefect_prime.flows.summary import markdown as summary_of
from prefect_prime.histogram import Bar
from prefect_prime.spool import Tally
from prefect_prime.tasks import EvaluationSpec, OpenedEvaluation

SPEC = EvaluationSpec(
    name="gsm8k-m",
    environments=[EnvironmentRef(owner="org", name="gsm8k")],
    model="m",
    metadata={"config_source": {"format": "toml", "text": "a = 1\n", "filename": "eval.toml"}},
)
CLOSING = Closing(
    ending=Ending("COMPLETED"),
    status="COMPLETED",
    reason=None,
    note=None,
    plan=EvalPlan(spec=SPEC, credentials=None),
    evaluation=OpenedEvaluation("e1", "gsm8k-m", "https://example.org/e1"),
    predecessor=None,
    attempt=1,
    seconds=83.0,
    episodes=4,
    metrics={"avg_reward": 0.75, "avg_error": 0.25, "avg_metrics": {"steps": 12.0}},
    rewards=[Bar(0.0, 0.0, 1), Bar(1.0, 1.0, 3)],
    failures=[],
    tallies={"traces": Tally(stored=4), "samples": Tally(stored=4)},
    rejected=0,
    dropped=0,
    torn=0,
    uploads=[],
    judgements=[],
)
HOSTILE = "</code><script>alert(1)</script> | `x` ``` \n# owned\n[a](javascript:alert(1)) **b**"


def test_status_and_what_came_out_stand_first() -> None:
    lines = summary_of(CLOSING).splitlines()

    assert lines[0] == "# ✓ Completed: gsm8k-m"
    assert lines[2] == "**4 episodes** · mean reward **0.75** · **25.0%** not ok · 1 min 23 s"


def test_the_reason_stands_before_anything_else() -> None:
    failed = replace(
        CLOSING, status="FAILED", ending=Ending("FAILED", "CUDA"), reason="CUDA\nout of memory"
    )

    assert summary_of(failed).startswith(
        "# ✗ Failed: gsm8k-m\n\n```text\nCUDA\nout of memory\n```\n"
    )
    assert description(failed) == "**Failed** · 4 episodes · mean reward 0.75 · CUDA out of memory"


def test_metrics_have_bars_where_a_bar_means_something() -> None:
    rows = [line for line in summary_of(CLOSING).splitlines() if line.startswith("| `")]

    assert rows[0] == f"| `avg_reward` | 0.75 | `{'█' * 15}{'░' * 5}` |"
    assert rows[2] == "| `steps` | 12 |  |"


def test_rewards_are_a_histogram() -> None:
    assert f"0  1   25.0%  {'█' * 13}▍\n1  3   75.0%  {'█' * 40}" in summary_of(CLOSING)


def test_the_verdict_of_gates_stands_right_below_the_status() -> None:
    gate = {
        "verdict": "regressed",
        "metric": "pass|1",
        "value": 0.5,
        "baseline": 0.75,
        "reason": "<b>pass|1</b> fell",
        "change": {"difference": -0.25, "standard_error": 0.2, "examples": 4, "within_noise": True},
        "worse": [{"example_id": "a](x)|b", "value": 0.0, "baseline": 1.0}],
        "baseline_url": "https://example.org/e0",
    }

    lines = summary_of(replace(CLOSING, judgements=[gate])).splitlines()

    assert lines[0] == "# ✗ Regressed: gsm8k-m"
    assert lines.index("## Gates") < lines.index("## Metrics")
    row = r"| ✗ regressed | `pass\|1` | 0.5 | 0.75 | -0.25 (noise) | ± 0.2 over 4 examples |"
    assert row in lines
    assert r"- \<b\>pass\|1\</b\> fell" in lines
    (worse,) = [line for line in lines if "example=" in line]
    assert "?example=a%5D%28x%29%7Cb#samples" in worse


def test_nothing_logged_is_no_empty_section() -> None:
    empty = replace(
        CLOSING, episodes=0, metrics={}, rewards=[], tallies={"traces": Tally()}, seconds=None
    )

    text = summary_of(empty)

    assert "## Metrics" not in text
    assert "## Rewards" not in text
    assert "## Errors" not in text


def test_losses_are_said_at_the_top_and_counted_by_sink() -> None:
    lossy = replace(CLOSING, tallies={"traces": Tally(stored=1, failed=3)}, rejected=2)

    text = summary_of(lossy)

    assert "**Not everything arrived:** 3 not stored by traces; 2 rejected." in text
    assert "| traces | 1 | 0 | **3** | 0 |" in text


def test_the_config_is_there_as_launched() -> None:
    assert "`eval.toml`\n\n```toml\na = 1\n```" in summary_of(CLOSING)


@pytest.mark.parametrize("where", ["name", "reason", "type", "message", "metric", "config", "url"])
def test_nothing_breaks_out_of_its_place(where: str) -> None:
    spec, given = SPEC, dict[str, Any]()
    if where == "name":
        spec = replace(SPEC, name=HOSTILE, tags=[HOSTILE], model=HOSTILE)
    if where == "config":
        spec = replace(SPEC, metadata={"config_source": {"text": HOSTILE, "format": HOSTILE}})
    if where in {"type", "message"}:
        failure = Failure("T", 1, "m", "r")
        given["failures"] = [replace(failure, **{where: HOSTILE, "record": HOSTILE})]
    if where == "reason":
        given["reason"] = HOSTILE
    if where == "metric":
        given["metrics"] = {"avg_metrics": {HOSTILE: 1.0}}
    if where == "url":
        given["evaluation"] = OpenedEvaluation(HOSTILE, HOSTILE, HOSTILE)

    closing = replace(CLOSING, plan=EvalPlan(spec=spec, credentials=None), **given)
    html = _html(summary_of(closing)) + _html(description(closing))

    assert "<script" not in html
    assert 'href="javascript' not in html
    assert ">owned<" not in html
    assert "<strong>b</strong>" not in html


def _html(text: str) -> str:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - rich brings it: a judge, not ours

    html: str = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return html


def test_a_table_cell_is_one_cell() -> None:
    html = _html(markdown.table(["a", "b"], [[markdown.code(HOSTILE), markdown.text(HOSTILE)]]))

    assert html.count("<td") == 2
