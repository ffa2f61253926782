"""What a person sees of a flow run in Prefect: from the first second, and however it ends."""

import json
import logging
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from faulty_proxy import Fault, FaultyProxy
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled
from support import wait_until

from prefect_prime.errors import UploadFailedError
from prefect_prime.flows import current_run, eval_flow, sessions
from prefect_prime.flows.artifacts import connected
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def tracked(platform: LocalPlatform) -> Any:
    def decorate(**options: Any) -> Any:
        given = {"environments": ["toy"], "model": "m-1", "credentials": platform.credentials}
        return eval_flow(**{**given, **options})

    return decorate


def artifacts(run_id: Any) -> dict[str, Artifact]:
    """The flow run's artifacts, each once, by key."""
    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(run_id))]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=mine)
    found = [artifact for artifact in found if artifact.key]  # Prefect keeps results there too
    keys = [artifact.key or "" for artifact in found]
    assert len(set(keys)) == len(keys)
    return {
        "summary" if "summary" in key else key: each for key, each in zip(keys, found, strict=True)
    }


def text(artifact: Artifact) -> str:
    return str(artifact.data)


def of(state: Any) -> dict[str, Artifact]:
    return artifacts(state.state_details.flow_run_id)


def watching() -> list[threading.Thread]:
    """The threads that show something at the moment."""
    return [each for each in threading.enumerate() if each.name == "prime-watch"]


def log(count: int = 1, **parts: Any) -> None:
    current_run().log_episodes([episode(rewards=1.0, **parts) for _ in range(count)])


def test_from_the_first_second_there_is_a_link_and_progress_that_moves(
    tracked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_prime.flows.watch._UPDATE", 0.05)
    monkeypatch.setattr("prefect_prime.flows.watch._DRAW", 0.05)
    seen: list[float] = []

    @tracked(expected="{n}")
    def entrypoint(n: int = 4) -> None:
        link = wait_until(lambda: artifacts(flow_run.id).get("prime-evaluation"))
        assert current_run().url in text(link)
        for logged in range(1, n):
            log()
            share = wait_until(lambda: at(logged / n))  # noqa: B023 - called at once
            seen.append(share)

    def at(share: float) -> float | None:
        shown = artifacts(flow_run.id).get("prime-progress")
        if shown is None or float(shown.data) != 100 * share:
            return None
        assert "mean reward 1" in (shown.description or "")
        return float(shown.data)

    state = entrypoint(return_state=True)

    assert seen == [25.0, 50.0, 75.0]
    assert of(state)["prime-progress"].data == 100.0


@pytest.mark.parametrize(
    ("end", "title", "reason"),
    [
        (lambda: None, "Completed", ""),
        (lambda: 1 / 0, "Failed", "division by zero"),
        (lambda: Cancelled(message="enough"), "Cancelled", "enough"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt), "Crashed", "crashed:"),
    ],
    ids=["completed", "failed", "cancelled", "crashed"],
)
def test_however_it_ends_one_summary_says_how_and_why(
    tracked: Any, end: Any, title: str, reason: str
) -> None:
    known: list[str] = []

    @tracked(evaluation_name="nightly")
    def entrypoint() -> Any:
        known.append(str(flow_run.id))
        log(3)
        return end()

    with suppress(KeyboardInterrupt):
        entrypoint(return_state=True)

    shown = artifacts(known[0])
    assert set(shown) == {"prime-evaluation", "prime-progress", "summary", "prime-uploads"}
    lines = text(shown["summary"]).splitlines()
    assert lines[0].endswith(f"{title}: nightly")
    assert reason in "\n".join(lines[1:5])
    assert (shown["summary"].description or "").startswith(f"**{title}** · 3 episodes")
    rows = json.loads(str(shown["prime-uploads"].data))
    assert {(row["sink"], row["records"]) for row in rows} == {("traces", 3), ("samples", 3)}


def test_the_table_of_uploads_names_rejected_records_with_their_reasons(tracked: Any) -> None:
    @tracked()
    def entrypoint() -> None:
        log(1)
        current_run().log_episodes([{"id": "odd", "traces": [], "more": object()}])

    rows = json.loads(str(of(entrypoint(return_state=True))["prime-uploads"].data))

    assert rows[0]["state"] == "rejected"
    assert "odd" in rows[0]["detail"]


def test_what_is_left_open_says_so_and_is_the_same_summary_when_it_is_finished(
    platform: LocalPlatform, tracked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_PRIME_DRAIN_TIMEOUT", "0")
    monkeypatch.setattr("prefect_prime.flows.lanes._FIRST_PAUSE", 600.0)

    def decide(_method: str, path: str) -> Fault | None:
        return "502 before" if "samples" in path or "traces" in path else None

    with FaultyProxy(platform, decide) as proxy:

        @tracked(credentials=proxy.credentials)
        def entrypoint() -> None:
            log(2)

        state = entrypoint(return_state=True)
        shown = of(state)

        assert "Left open" in text(shown["summary"]).splitlines()[0]
        assert "2 still to be sent to samples" in text(shown["summary"])

        proxy.decide = lambda _method, _path: None
        folder = next(Path.home().glob(".prefect-prime/spool/*/owner"))
        assert folder.exists()
        sessions.close_evaluation_of_run(entrypoint, _flow_run(state), state)

    assert "Completed" in text(of(state)["summary"]).splitlines()[0]


def _flow_run(state: Any) -> Any:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def test_an_outage_shows_in_the_progress_while_it_lasts(
    platform: LocalPlatform,
    tracked: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("prefect_prime.flows.watch._UPDATE", 0.05)
    monkeypatch.setattr("prefect_prime.flows.watch._DRAW", 0.05)
    monkeypatch.setattr("prefect_prime.flows.lanes._FIRST_PAUSE", 0.2)
    away = True

    def decide(_method: str, path: str) -> Fault | None:
        return "502 before" if away and path.endswith("/samples") else None

    def described(what: str) -> bool:
        shown = artifacts(flow_run.id).get("prime-progress")
        return shown is not None and what in (shown.description or "")

    with FaultyProxy(platform, decide) as proxy:

        @tracked(credentials=proxy.credentials)
        def entrypoint() -> None:
            nonlocal away
            log(2)
            current_run().flush(0)
            wait_until(lambda: described("samples: out since"))
            assert described("2 records behind")
            away = False
            current_run().flush(30)
            wait_until(lambda: described("nothing behind"))

        assert entrypoint(return_state=True).is_completed()

    said = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record.name for record in said] == ["prefect.flow_runs"]  # once, with no traceback


@pytest.mark.parametrize("kind", ["away", "hanging"])
def test_a_prefect_server_that_does_not_answer_does_no_harm(
    tracked: Any, monkeypatch: pytest.MonkeyPatch, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all that goes there, only what is shown is kept from it: the flow run needs the rest."""
    let_go = threading.Event()
    monkeypatch.setattr("prefect_prime.flows.watch._LAST", 0.1 if kind == "hanging" else 30.0)

    @contextmanager
    def elsewhere(*, shared: bool) -> Any:  # noqa: ARG001 - the signature of the real one
        if kind == "hanging":
            let_go.wait()
        with (
            temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
            connected(shared=False) as client,
        ):
            yield client

    monkeypatch.setattr("prefect_prime.flows.watch.connected", elsewhere)

    @tracked()
    def entrypoint() -> None:
        log(2)

    state = entrypoint(return_state=True)
    let_go.set()
    wait_until(lambda: not watching())  # else it goes on in the next test, with what that patches

    assert state.is_completed()
    assert state.result().status == "COMPLETED"
    assert of(state) == {}
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_where_the_flow_runs_own_client_is_closed_another_is_used(
    tracked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a background thread that outlives the flow run whose context it has."""
    tries: list[bool] = []

    @contextmanager
    def closed(*, shared: bool) -> Any:
        tries.append(shared)
        if shared:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        with connected(shared=False) as client:
            yield client

    monkeypatch.setattr("prefect_prime.flows.watch.connected", closed)

    @tracked()
    def entrypoint() -> None:
        log(1)

    assert "Completed" in text(of(entrypoint(return_state=True))["summary"])
    assert tries == [True, False]


@pytest.mark.parametrize("where", ["watch.Progress.of", "session.Closing.of", "watch.Watch.start"])
def test_an_error_while_showing_never_reaches_the_eval(
    tracked: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug in here")

    monkeypatch.setattr(f"prefect_prime.flows.{where}", broken)

    @tracked()
    def entrypoint() -> None:
        log(2)

    assert entrypoint().status == "COMPLETED"


def test_a_retry_goes_on_with_the_same_artifacts(tracked: Any) -> None:
    @tracked(retries=1)
    def entrypoint() -> None:
        log(1)
        if current_run().attempt == 1:
            raise RuntimeError("once")

    state = entrypoint(return_state=True)

    shown = of(state)  # each once
    assert "Completed" in text(shown["summary"])
    assert "attempt 2" in text(shown["summary"])


def test_an_eval_that_could_not_begin_says_why(tracked: Any) -> None:
    @tracked(environments=["org/unknown"])
    def entrypoint() -> None: ...

    summary = text(of(entrypoint(return_state=True))["summary"])

    assert summary.splitlines()[0].endswith("Failed: unknown-m-1")
    assert "is not on the hub" in summary
    assert "There is no evaluation" in summary


def test_offline_it_is_shown_all_the_same(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_RUNS_MODE", "offline")

    @tracked()
    def entrypoint() -> None:
        log(2)

    shown = of(entrypoint(return_state=True))

    assert text(shown["summary"]).splitlines()[0].endswith("Offline: toy-m-1")
    assert "prime-evaluation" not in shown
    assert "2 episodes" in (shown["prime-progress"].description or "")


def test_what_a_person_deleted_is_made_again(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_prime.flows.watch._DRAW", 0.05)

    @tracked()
    def entrypoint() -> None:
        log(1)
        shown = wait_until(lambda: artifacts(flow_run.id).get("prime-progress"))
        with get_client(sync_client=True) as client:
            client.delete_artifact(shown.id)

    shown = of(entrypoint(return_state=True))

    assert shown["prime-progress"].data == 100.0


def test_no_thread_of_it_is_left_after_the_end(tracked: Any) -> None:
    @tracked()
    def entrypoint() -> None:
        log(1)

    entrypoint()

    assert not watching()


def test_the_platform_key_is_in_no_artifact(platform: LocalPlatform, tracked: Any) -> None:
    @tracked()
    def entrypoint() -> None:
        log(1)
        raise UploadFailedError("of the user's own")

    secret = platform.credentials.api_key.get_secret_value()
    shown = of(entrypoint(return_state=True))

    assert shown
    assert secret not in repr([(each.data, each.description) for each in shown.values()])


def test_a_summary_is_named_for_its_environment_and_model(tracked: Any) -> None:
    unique = uuid4().hex[:6]

    @tracked(environments=[f"Env_{unique}"])
    def entrypoint() -> None:
        log(1)

    assert of(entrypoint(return_state=True))["summary"].key == f"prime-summary-env-{unique}-m-1"
