"""The demo is an eval like anybody's, and its command leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import DATA, Evaluations, wait_until

from prefect_prime.arithmetic import answer_in, problems, reply
from prefect_prime.flows import EvalResult
from prefect_prime.flows.demo import attempt, demo
from prefect_prime.local import LocalPlatform

#: What a person may have set, and the demo must not use: all of it leads nowhere.
FOREIGN = {
    "PREFECT_API_URL": "http://127.0.0.1:9/api",
    "PREFECT_LOGGING_LEVEL": "DEBUG",
    "PRIME_API_KEY": "a-real-key",
    "PRIME_API_BASE_URL": "http://127.0.0.1:9",
    "PRIME_RUNS_MODE": "disabled",
    "EVALUATION_ID": "hosted",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
}


def text_of(episode: dict[str, Any]) -> str:
    return str(episode["traces"][0]["nodes"][-1]["message"]["content"])


# -- the task set and its model ------------------------------------------------------


def test_a_seed_gives_the_same_problems_again_and_another_seed_others() -> None:
    assert list(problems(40, seed=3)) == list(problems(40, seed=3))
    assert list(problems(40, seed=3))[:9] == list(problems(9, seed=3))
    assert list(problems(40, seed=3)) != list(problems(40, seed=4))


def test_every_problem_asks_for_its_answer_with_its_numbers() -> None:
    for problem in problems(60, seed=1):
        numbers = set(re.findall(r"\d+", problem.question))
        assert {str(problem.start), *(str(operand) for _, operand in problem.steps)} == numbers
        assert problem.answer > 0


def test_the_model_is_sometimes_wrong_and_always_in_the_same_way() -> None:
    asked = [problem for problem in problems(40, seed=0) if problem.idx != 2]
    replies = [reply("toy-solver", problem, 0) for problem in asked]
    right = [
        answer_in(text) == problem.answer for text, problem in zip(replies, asked, strict=True)
    ]

    assert 0.4 < sum(right) / len(right) < 0.95
    assert replies == [reply("toy-solver", problem, 0) for problem in asked]
    assert replies != [reply("another", problem, 0) for problem in asked]


def test_one_rollout_gets_no_reply_and_is_an_episode_with_an_error() -> None:
    third = list(problems(3, seed=0))[2]
    failed, answered = attempt("toy-solver", third, 0), attempt("toy-solver", third, 1)

    assert (failed["ok"], answered["ok"]) == (False, True)
    assert failed["traces"][0]["errors"][0]["type"] == "ConnectionError"
    assert failed["traces"][0]["rewards"] == {}
    assert answer_in(text_of(answered)) is not None


# -- the flow ------------------------------------------------------------------------


@pytest.mark.usefixtures("prefect_server")
def test_the_demo_streams_while_it_runs(
    platform: LocalPlatform, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_SEGMENT_BYTES", "4096")
    before = len(platform.requests)
    result = demo.with_options(credentials=platform.credentials)(examples=20, rollouts=3)

    assert isinstance(result, EvalResult)
    assert (result.status, result.episodes) == ("COMPLETED", 60)
    assert result.summary["avg_error"] == pytest.approx(1 / 60)
    evaluation = evaluations(result.evaluation_id or "")
    assert (evaluation["name"], evaluation["model_name"]) == ("arithmetic-toy-solver", "toy-solver")
    rows = evaluations.rows(evaluation["id"])
    assert {(row["example_id"], row["rollout_number"]) for row in rows} == {
        (example, rollout) for example in range(20) for rollout in (1, 2, 3)
    }
    uploads = [r for r in platform.requests[before:] if r.path.endswith("/traces")]
    assert len(uploads) > 5


def test_it_is_deployable_by_its_module() -> None:
    deployment: Any = demo.to_deployment("nightly", parameters={"examples": 3})

    assert demo._entrypoint == "prefect_prime.flows.demo:demo"
    assert deployment.parameters == {"examples": 3}
    assert demo.parameters.required == []
    assert demo.parameters.properties["examples"]["exclusiveMinimum"] == 0


# -- the command ---------------------------------------------------------------------


@pytest.fixture
def sandbox(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty HOME, a temporary folder of its own, and traps."""
    for name in ("empty", "temporary"):
        (tmp_path / name).mkdir()
    return {
        **os.environ,
        **FOREIGN,
        "DO_NOT_TRACK": "1",
        "HOME": str(tmp_path / "empty"),
        "TMPDIR": str(tmp_path / "temporary"),
        "COLUMNS": "100",
    }


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """After the test no process works in the demo's folder, which is gone with all in it."""
    yield
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path for path in (tmp_path / "empty").rglob("*") if path.is_file()] == []
    assert working_below(tmp_path / "temporary") == []


def working_below(folder: Path) -> list[str]:
    """The processes whose current directory is in a folder, even if it is removed."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = str((process / "cwd").readlink())
        except OSError:
            continue
        if where.startswith(str(folder)):
            found.append(process.name)
    return found


def start(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_prime.flows.demo", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.usefixtures("nothing_left")
def test_the_command_shows_both_evaluations_and_leaves_nothing_behind(
    sandbox: dict[str, str],
) -> None:
    running = start(sandbox, "--real-run", str(DATA / "errors"))
    output, _ = running.communicate(timeout=240)

    assert running.returncode == 0, output
    assert not re.search(r"ERROR|WARNING|Traceback", output), output
    assert re.search(r"^arithmetic-toy-solver  COMPLETED", output, re.MULTILINE)
    assert re.search(r"^errors  COMPLETED", output, re.MULTILINE)
    assert len(re.findall(r"^page +http://127.0.0.1:\d+/dashboard/", output, re.MULTILINE)) == 2
    assert "300, 1 of them with an error" in output
    assert "20, 10 of them with an error" in output
    assert re.search(r"^traces +300 episodes to Prime Traces, in \d+ uploads", output, re.MULTILINE)
    assert re.search(r"^samples +20 rows to the evaluation", output, re.MULTILINE)
    assert "eval.toml, byte for byte" in output
    assert "The pages above end with this command" in output
    assert "make demo SERVE=1" in output
    assert FOREIGN["PRIME_API_KEY"] not in output


@pytest.mark.usefixtures("nothing_left")
def test_served_its_pages_stay_up_until_it_is_interrupted(sandbox: dict[str, str]) -> None:
    running = start(sandbox, "--serve")
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("  flow runs"):
            break
    urls = re.findall(r"http://127\.0\.0\.1:\S+", "".join(lines))
    try:
        assert len(urls) == 4
        for url in urls:
            page = urllib.request.Request(url, headers={"Accept": "text/html"})  # noqa: S310 - ours
            with urllib.request.urlopen(page) as answer:  # noqa: S310 - same
                assert "<html" in answer.read().decode().lower()
    finally:
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=60)

    assert running.returncode == 0, rest
    assert "Traceback" not in rest


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_early_it_takes_everything_with_it(
    sandbox: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    running = start(sandbox)
    wait_until(lambda: list((tmp_path / "temporary").glob("*/prefect-server.log")))
    running.send_signal(number)
    output, _ = running.communicate(timeout=60)

    assert running.returncode not in {0, 1}
    assert "Traceback" not in output


def test_a_path_that_is_no_run_is_told_before_anything_starts(
    sandbox: dict[str, str], tmp_path: Path
) -> None:
    running = start(sandbox, "--real-run", str(tmp_path))
    output, _ = running.communicate(timeout=60)

    assert running.returncode == 2
    assert "is a directory without a traces.jsonl" in output


def test_the_command_explains_itself(sandbox: dict[str, str]) -> None:
    running = start(sandbox, "--help")
    output, _ = running.communicate(timeout=60)

    assert running.returncode == 0
    assert "--real-run DIR" in output
    assert "--serve" in output
