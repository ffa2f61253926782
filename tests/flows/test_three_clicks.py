"""From a flow run's page to the evaluation, to the example that matters, and back again."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from page_support import links
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings
from tracked import rollout

from prefect_prime.flows import current_run
from prefect_prime.flows.server import flow_run_url

pytestmark = pytest.mark.usefixtures("prefect_server")


def page(url: str) -> str:
    """What a person sees who follows a link."""
    answer = httpx.get(url, follow_redirects=True)
    assert answer.is_success, url
    return answer.text


def test_the_evaluations_page_leads_back_to_the_flow_run_while_it_runs_and_after(
    tracked: Any,
) -> None:
    during: list[str] = []

    @tracked(flow_run_name="bold-otter")
    def entrypoint() -> None:
        current_run().log_episodes([rollout(1)])
        during.extend(links(page(str(current_run().url)), "bold-otter"))

    state = entrypoint(return_state=True)

    expected = f"{PREFECT_UI_URL.value()}/runs/flow-run/{state.state_details.flow_run_id}"
    assert during == [expected]
    assert links(page(state.result().url), "bold-otter") == [expected]


@pytest.mark.parametrize(
    ("api", "shown"),
    [
        ("https://prefect.example/x/api", "https://prefect.example/x/runs/flow-run/{}"),
        ("http://me:s3cret@host.example:4200/api", "http://host.example:4200/runs/flow-run/{}"),
        ("http://me:s3cret@[::1]:4200/api", "http://[::1]:4200/runs/flow-run/{}"),
    ],
)
def test_the_address_of_a_flow_run_holds_no_secret(api: str, shown: str) -> None:
    run_id = uuid4()
    with temporary_settings({PREFECT_API_URL: api}):
        assert flow_run_url(run_id) == shown.format(run_id)


def test_a_secret_in_the_address_of_the_ui_stays_there() -> None:
    run_id = uuid4()
    with temporary_settings({PREFECT_UI_URL: "https://ui.example/?token=s3cret#s3cret"}):
        assert flow_run_url(run_id) == f"https://ui.example/runs/flow-run/{run_id}"


def test_without_a_ui_there_is_no_address() -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL, PREFECT_UI_URL}):
        assert flow_run_url(uuid4()) is None
