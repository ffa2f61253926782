"""What a person sees beside the artifacts: names, log lines, events, a terminal, a notebook."""

import io
import logging
import os
import pty
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.runtime import flow_run
from rich.console import Console
from support import wait_until

from prefect_prime.flows import EvalResult, current_run, eval_flow
from prefect_prime.flows.naming import was_made_up
from prefect_prime.flows.terminal import Terminal
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def tracked(platform: LocalPlatform) -> Any:
    def decorate(**options: Any) -> Any:
        given = {"environments": ["toy"], "model": "m-1", "credentials": platform.credentials}

        @eval_flow(**{**given, **options})
        def entrypoint() -> None:
            current_run().log_episodes([episode(rewards=1.0)])

        return entrypoint

    return decorate


def name_of(run_id: Any) -> str:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id).name


# -- names ------------------------------------------------------------------------------


def test_a_name_that_prefect_made_up_tells_environment_and_model_instead(tracked: Any) -> None:
    state = tracked()(return_state=True)

    assert name_of(state.state_details.flow_run_id) == "toy · m-1"


def test_a_flow_run_name_of_the_flows_own_stays(tracked: Any) -> None:
    state = tracked(flow_run_name="busy-cheetah")(return_state=True)

    assert name_of(state.state_details.flow_run_id) == "busy-cheetah"


@pytest.mark.parametrize("name", ["nightly", "my-run", "gsm8k-gpt", "v2-2026-11-30"])
def test_a_name_given_where_the_flow_run_was_made_stays(tracked: Any, name: str) -> None:
    flow = tracked()
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(flow, name=name)

    run_flow(flow, flow_run=made)

    assert name_of(made.id) == name


def test_names_that_prefect_makes_up_are_known_for_that() -> None:
    from prefect.utilities.names import generate_slug  # noqa: PLC0415 - the judge

    assert all(was_made_up(generate_slug(2)) for _ in range(200))


# -- the log ------------------------------------------------------------------------------


def test_the_log_says_opened_and_closed_and_nothing_per_upload(
    tracked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result = tracked()()

    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert [line for line in lines if result.url in line] == [
        f"Evaluation toy-m-1: {result.url}",
        f"Evaluation toy-m-1 is COMPLETED: {result.url}",
    ]
    tasks = [record for record in caplog.records if record.name == "prefect.task_runs"]
    assert [record for record in tasks if record.levelno >= logging.INFO] == []


def test_a_users_own_tasks_still_say_how_they_finished(
    platform: LocalPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect import task  # noqa: PLC0415 - only here

    @task
    def mine() -> None: ...

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        mine()

    entrypoint()

    tasks = [record for record in caplog.records if record.name == "prefect.task_runs"]
    assert [record.getMessage() for record in tasks] == ["Finished in state Completed()"]


def test_now_and_then_a_line_says_how_far_it_is(
    platform: LocalPlatform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_prime.flows.watch._TELL", 0.0)
    monkeypatch.setattr("prefect_prime.flows.watch._UPDATE", 0.05)
    monkeypatch.setattr("prefect_prime.flows.watch._DRAW", 0.05)

    @eval_flow(environments=["toy"], credentials=platform.credentials, expected=4)
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=0.5)])
        wait_until(lambda: "1 of 4 episodes" in caplog.text)

    entrypoint()

    assert "mean reward 0.5" in caplog.text


# -- events -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "what"),
    [(lambda: None, "completed"), (lambda: 1 / 0, "failed")],
    ids=["completed", "failed"],
)
def test_opening_and_closing_are_events_with_metrics(
    platform: LocalPlatform, end: Any, what: str
) -> None:
    known: list[tuple[str, str]] = []

    @eval_flow(environments=["toy"], model="m-1", credentials=platform.credentials)
    def entrypoint() -> None:
        known.append((current_run().id or "", flow_run.id))
        current_run().log_episodes([episode(rewards=0.5)])
        end()

    entrypoint(return_state=True)
    evaluation_id, run_id = known[0]

    def events() -> list[dict[str, Any]] | None:
        named = {"resource": {"id": [f"prime.evaluation.{evaluation_id}"]}}
        with get_client(sync_client=True) as client:
            answer = client.request("POST", "/events/filter", json={"filter": named})
        found: list[dict[str, Any]] = answer.json()["events"]
        return found if len(found) > 1 else None

    by_name = {each["event"]: each for each in wait_until(events)}

    assert set(by_name) == {"prime.evaluation.opened", f"prime.evaluation.{what}"}
    closed = by_name[f"prime.evaluation.{what}"]
    assert closed["payload"]["metrics"]["avg_reward"] == 0.5
    assert closed["resource"]["prime.model"] == "m-1"
    assert closed["resource"]["prime.environment"] == "toy"
    related = [each["prefect.resource.id"] for each in closed["related"]]
    assert f"prefect.flow-run.{UUID(run_id)}" in related


# -- a terminal ---------------------------------------------------------------------------


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A terminal that Prefect logs to; gives what was drawn on it."""
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")
    handler = PrefectConsoleHandler(stream=stream)
    handler.console = Console(file=stream, width=160)
    monkeypatch.setenv("TERM", "xterm-256color")
    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "handlers", [handler])

    def drawn() -> str:
        stream.flush()
        os.set_blocking(ours, False)
        try:
            return os.read(ours, 1_000_000).decode()
        except BlockingIOError:
            return ""

    yield drawn
    stream.close()
    os.close(ours)


def test_in_a_terminal_a_live_line_shows_how_far_it_is(
    screen: Any, platform: LocalPlatform
) -> None:
    seen: list[str] = []

    @eval_flow(environments=["toy"], model="m-1", expected=4, credentials=platform.credentials)
    def entrypoint() -> None:
        current_run().log_episodes([episode(rewards=0.5)])

        def shown() -> bool:
            seen.append(screen())
            return "1 of 4 episodes" in "".join(seen)

        wait_until(shown)

    entrypoint()

    text = "".join(seen)
    assert "toy · m-1" in text
    assert " 25 %" in text


def test_without_a_terminal_there_is_no_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = PrefectConsoleHandler(stream=io.StringIO())
    handler.console = Console(file=io.StringIO(), force_terminal=True)  # as FORCE_COLOR does
    monkeypatch.setattr(logging.getLogger("prefect.flow_runs"), "handlers", [handler])

    assert not Terminal("toy").is_live


def test_in_a_notebook_there_is_no_live_line(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415 - only here

    monkeypatch.setitem(sys.modules, "ipykernel", io)

    assert not Terminal("toy").is_live
    assert screen() == ""


# -- a notebook ---------------------------------------------------------------------------


def test_a_result_is_a_link_and_its_metrics(tracked: Any) -> None:
    result = tracked()()

    html = result._repr_html_()

    assert f'<a href="{result.url}"' in html
    assert "COMPLETED" in html
    assert ">avg_reward</th>" in html


def test_a_run_is_a_link_and_its_metrics_so_far(platform: LocalPlatform) -> None:
    html: list[str] = []

    @eval_flow(environments=["toy"], credentials=platform.credentials)
    def entrypoint() -> None:
        run = current_run()
        run.log_episodes([episode(rewards=0.25)])
        html.append(run._repr_html_())

    entrypoint()

    assert ">0.25</td>" in html[0]
    assert "<a href=" in html[0]


def test_nothing_in_a_notebook_breaks_out_of_its_place() -> None:
    bad = f"<script>{uuid4().hex}</script>"
    result = EvalResult(
        bad, 'javascript:alert("1")', bad, 1, {"avg_metrics": {bad: 1.0}}, {bad: {bad: 1}}
    )

    html = result._repr_html_()

    assert "<script" not in html
    assert "javascript" not in html
