"""The public clients, unmodified, are the judges of what the platform speaks."""

import json

import prime_evals
import prime_runs
import prime_traces
import pytest
import verifiers.v1 as vf
from support import DATA

from prefect_prime.local import LocalPlatform

EPISODE = prime_traces.LineFormat.EPISODE
REAL = ["clean", "errors", "multi", "multi-half", "bestofn"]


@pytest.fixture
def load_episodes(read_run):
    def load(name):
        return [vf.WireEpisode.model_validate_json(line) for line in read_run(name)]

    return load


@pytest.fixture
def evals_client():
    """A ``prime_evals`` client that is closed after its test."""
    clients = []

    def connect():
        client = prime_evals.APIClient()
        clients.append(client)
        return prime_evals.EvalsClient(client)

    yield connect
    for client in clients:
        client.client.close()


@pytest.mark.parametrize("name", REAL)
def test_a_prime_run_arrives_whole_through_its_traces(platform, api, point_at, load_episodes, name):
    point_at(platform)
    run = prime_runs.init(
        name=name,
        environments=["toy-eval"],
        model="fake-model",
        framework="verifiers",
        config={"n": 1},
        on_error="raise",
    )
    episodes = load_episodes(name)
    run.log_episodes(episodes)
    run.summary["avg_reward"] = 0.5
    run.finish()
    assert run.errors == []
    evaluation = api.get(f"/evaluations/{run.id}").json()
    assert evaluation["status"] == "COMPLETED"
    assert evaluation["metrics"]["avg_reward"] == 0.5
    assert evaluation["metrics"]["prime_runs"]["traces_episodes_written"] == len(episodes)
    assert evaluation["metadata"]["n"] == 1
    assert evaluation["samples_count"] == 0
    assert run.url == evaluation["viewer_url"]
    totals = api.get(f"/runs/{run.id}").json()
    assert totals["episode_count"] == len(episodes)
    assert totals["trace_count"] == sum(len(episode.traces) for episode in episodes)
    assert totals["context"]["run_type"] == "eval"


def test_a_prime_run_falls_back_to_samples_where_traces_are_off(connect, point_at, load_episodes):
    folder = DATA / "errors"
    with LocalPlatform(traces="not_enabled") as platform:
        point_at(platform)
        run = prime_runs.init(environments=["toy-eval"], model="fake-model", on_error="raise")
        run.log_episodes(load_episodes("errors"))
        run.finish()
        page = connect(platform).get(f"/evaluations/{run.id}/samples").json()
        expected = json.loads((folder / "expected" / "samples.json").read_bytes())
        assert page["total"] == len(expected)
        assert {row["sample_id"] for row in page["samples"]} == {
            row["sample_id"] for row in expected
        }


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        ({"status": "failed", "error": "broke"}, "FAILED", "broke"),
        ({"status": "cancelled"}, "CANCELLED", None),
    ],
)
def test_a_prime_run_that_does_not_complete_is_closed(  # noqa: PLR0917 - a table of cases
    platform, api, point_at, ending, status, message
):
    point_at(platform)
    run = prime_runs.init(environments=["toy-eval"], model="m")
    run.finish(**ending)
    evaluation = api.get(f"/evaluations/{run.id}").json()
    assert (evaluation["status"], evaluation["error_message"]) == (status, message)
    run.finish()
    assert api.get(f"/evaluations/{run.id}").json()["status"] == status


def test_a_prime_run_on_a_published_environment_and_an_unknown_one(platform, api, point_at):
    point_at(platform)
    environment = platform.publish_environment("lab/prime-run")
    run = prime_runs.init(environments=["lab/prime-run"], model="m")
    run.finish()
    assert api.get(f"/evaluations/{run.id}").json()["environment_ids"] == [environment]
    assert api.get(f"/evaluations/{run.id}").json()["dataset"] == "prime-run"
    with pytest.raises(prime_runs.EnvironmentResolutionError):
        prime_runs.init(environments=["lab/unknown"], model="m")


def test_prime_evals_creates_pushes_finalizes_lists_and_gets(platform, point_at, evals_client):
    point_at(platform)
    platform.publish_environment("lab/evals")
    client = evals_client()
    created = client.create_evaluation(
        name="pushed",
        environments=[{"name": "own-env"}, {"slug": "lab/evals"}, {"slug": "lab/unknown"}],
        model_name="m",
        dataset="own-env",
        tags=["a"],
        metadata={"k": "v"},
        suite_id="evals",
    )
    evaluation = created["evaluation_id"]
    rows = [{"example_id": n, "reward": n / 2, "text": "x" * 1000} for n in range(50)]
    pushed = client.push_samples(evaluation, rows, max_payload_bytes=10_000)
    assert pushed == {"samples_pushed": 50, "samples_skipped": 0}
    client.update_evaluation(evaluation, description="d", tags=["a", "b"])
    client.finalize_evaluation(evaluation, metrics={"avg_reward": 1.0})
    shown = prime_evals.Evaluation.model_validate(client.get_evaluation(evaluation))
    assert (shown.id, shown.status, shown.total_samples) == (evaluation, "COMPLETED", 50)
    assert (shown.tags, shown.metrics) == (["a", "b"], {"avg_reward": 1.0})
    assert len(shown.environment_ids) == 2
    listed = client.list_evaluations(env_name="own-env", suite_id="evals")
    assert [item["evaluation_id"] for item in listed["evaluations"]] == [evaluation]
    page = prime_evals.SamplesResponse.model_validate(client.get_samples(evaluation, 1, 30))
    assert (len(page.samples), page.total, page.has_more) == (30, 50, True)
    page = client.get_samples(evaluation, page=2, limit=30)
    assert len(page["samples"]) == 20


def test_prime_evals_takes_the_id_of_an_environment(platform, point_at, evals_client):
    point_at(platform)
    client = evals_client()
    environment = platform.publish_environment("lab/by-id")
    created = client.create_evaluation(name="by id", environments=[{"id": environment}])
    assert created["environment_ids"] == [environment]
    with pytest.raises(prime_evals.InvalidEvaluationError):
        client.create_evaluation(name="none", environments=[{"id": "nobody"}])


@pytest.mark.parametrize("compress", [True, False])
def test_prime_traces_uploads_a_file_in_batches(platform, point_at, tmp_path, read_run, compress):
    point_at(platform)
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"".join(read_run("errors")))
    with prime_traces.TracesClient() as client:
        receipts = client.upload_file(
            path,
            line_format=EPISODE,
            compress=compress,
            target_batch_bytes=20_000,
            context={"source": "file"},
        )
        assert len(receipts) > 1
        assert {receipt.status for receipt in receipts} == {"committed"}
        uploads = [receipt.upload_id for receipt in receipts]
        listed = {item.episode_id for item in client.list_episodes(upload_id=uploads).items}
        assert listed == {json.loads(line)["id"] for line in read_run("errors")}
        again = client.upload_file(path, line_format=EPISODE, target_batch_bytes=20_000)
        assert again == receipts


def test_prime_traces_streams_a_raw_trace_to_a_file(platform, point_at, tmp_path):
    point_at(platform)
    record = {"id": "large", "info": {"text": "é" * 3_000_000}}
    with prime_traces.TracesClient() as client:
        client.upload_records([record])
        written = client.download_raw("large", tmp_path / "raw.json")
    assert written == (tmp_path / "raw.json").stat().st_size
    assert json.loads((tmp_path / "raw.json").read_bytes()) == record


def test_prime_traces_sees_why_an_upload_was_refused(platform, point_at):
    point_at(platform)
    with prime_traces.TracesClient() as client:
        with pytest.raises(prime_traces.ValidationRejectedError) as refused:
            client.upload_lines([b'{"id": "x"}\n', b'{"id": "x"}\n'])
        assert refused.value.code == "duplicate_trace_id"
        client.upload_lines([b'{"id": "c", "traces": []}'], line_format=EPISODE)
        with pytest.raises(prime_traces.LineFormatConflictError):
            client.upload_lines([b'{"id": "c", "traces": []}'])
