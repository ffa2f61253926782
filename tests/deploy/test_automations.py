"""The automations of ``docs/automations.md``, as written there, on a real server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import Any

import pytest
from prefect import flow
from prefect.blocks.notifications import SlackWebhook
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.settings import PREFECT_API_URL, temporary_settings
from support import Evaluations, wait_until

#: Over the limits of everything that a test waits for, the server's start among it.
pytestmark = [
    pytest.mark.timeout(600),
    # By apprise, which sends what the Slack block is given.
    pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning"),
]
PAGE = Path(__file__).parents[2] / "docs" / "automations.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
#: One fails; one is closed as completed, and then as regressed, because its gate does not hold.
EVALS = """
    from prefect_prime.flows import Gate, current_run, eval_flow
    from prefect_prime.records import episode


    @eval_flow(
        environments=["gsm8k"],
        model="small",
        evaluation_name="automated-{fails}",
        gates=[Gate("avg_reward", minimum=0.5)],
    )
    def nightly(fails: bool):
        current_run().log_episodes([episode(rewards=0.25)])
        if fails:
            raise RuntimeError("no more GPUs")


    for fails in True, False:
        nightly(fails, return_state=True)
"""


@flow
def promote(
    evaluation_id: str, model: str, metrics: dict[str, Any], gates: list[dict[str, Any]]
) -> None:
    """What the page asks a person to have; it is started, and there is no worker to run it."""


@contextmanager
def chat() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where notifications arrive: an address that Slack's block takes, and the messages."""
    messages: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"json://127.0.0.1:{listening.server_port}", messages
        finally:
            listening.shutdown()


@pytest.fixture
def automated(server: Any) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The deployment and the messages of the page's automations, which are there for one test."""
    with temporary_settings({PREFECT_API_URL: server.url}), chat() as (address, messages):
        SlackWebhook(url=address).save("evals", overwrite=True)
        deployment_id: Any = promote.to_deployment("prod").apply()
        for block in BLOCKS:
            exec(compile(block, str(PAGE), "exec"), {})  # noqa: S102 - the page is what is tested
        yield deployment_id, messages
        # The server is other tests' too, and their evaluations are no matter of these.
        for automation in server.client.read_automations():
            server.client.delete_automation(automation.id)


def test_evaluations_tell_somebody_and_start_a_deployment(
    automated: Any, server: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    deployment_id, messages = automated
    (tmp_path / "evals.py").write_text(dedent(EVALS))

    subprocess.run([sys.executable, tmp_path / "evals.py"], env=server.env, check=True)

    ours = DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id]))
    (started,) = wait_until(lambda: server.client.read_flow_runs(deployment_filter=ours))
    failed, completed = evaluations.only("automated-True"), evaluations.only("automated-False")
    given = started.parameters
    assert given["evaluation_id"] == completed["id"]
    assert given["model"] == "small"
    assert given["metrics"] == {
        "avg_reward": 0.25,
        "avg_error": 0.0,
        "avg_metrics": {"reward": 0.25},
    }
    assert [each["verdict"] for each in given["gates"]] == ["regressed"]
    wait_until(lambda: len(messages) == 2)
    told = {each["title"]: each["message"].splitlines() for each in messages}
    assert told.keys() == {"automated-True failed", "automated-False regressed"}
    reason, reward, _, link = told["automated-False regressed"]
    assert reason == "avg_reward 0.25 is below 0.5"
    assert reward == "avg_reward: 0.25"
    assert link.endswith(completed["id"])
    reason, *_, link = told["automated-True failed"]
    assert "no more GPUs" in reason
    assert link.endswith(failed["id"])
