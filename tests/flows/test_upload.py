"""A finished run is sent as one evaluation, whole, whatever its file looks like."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support import DATA, Evaluations, canonical, expected_rows, expected_summary

from prefect_prime.errors import ConfigurationError, UploadFailedError
from prefect_prime.flows import EvalResult
from prefect_prime.flows.upload import upload as deployable
from prefect_prime.local import LocalPlatform

pytestmark = pytest.mark.usefixtures("prefect_server")

CLEAN = DATA / "clean"
TORN = DATA / "crash-torn"


@pytest.fixture
def upload(platform: LocalPlatform) -> Any:
    return deployable.with_options(credentials=platform.credentials)


def copied(folder: Path, to: Path, *, edit: Any = None) -> Path:
    target = to / folder.name
    shutil.copytree(folder, target)
    if edit is not None:
        file = target / "traces.jsonl"
        file.write_bytes(edit(file.read_bytes()))
    return target


def assert_is(folder: Path, result: EvalResult, evaluations: Evaluations) -> dict[str, Any]:
    evaluation = evaluations(result.evaluation_id or "")
    assert evaluation["status"] == result.status == "COMPLETED"
    assert canonical(evaluations.rows(evaluation["id"])) == canonical(expected_rows(folder))
    summary = expected_summary(folder)
    assert {key: evaluation["metrics"][key] for key in summary} == summary
    return evaluation


def test_a_real_run_directory_arrives_whole(
    real_run: Path, upload: Any, evaluations: Evaluations
) -> None:
    result = upload(str(real_run))

    evaluation = assert_is(real_run, result, evaluations)
    resolved = json.loads((real_run / "configs/resolved/eval.json").read_bytes())
    launched = real_run / "configs/eval.toml"
    config = launched if launched.exists() else real_run / "configs/resolved/eval.json"
    assert evaluation["name"] == resolved["run"]["name"]
    assert evaluation["model_name"] == "fake-model"
    assert evaluation["dataset"] == "toy-eval"
    assert evaluation["framework"] == "verifiers"
    assert evaluation["metadata"]["config_source"] == {
        "format": config.suffix[1:],
        "text": config.read_bytes().decode(),
        "filename": config.name,
    }
    lines = (real_run / "traces.jsonl").read_bytes().splitlines()
    assert evaluation["metadata"]["upload"]["episodes"] == result.episodes == len(lines)
    assert evaluation["metadata"]["upload"]["bad_lines"] == 0


def test_the_good_lines_of_a_torn_run_arrive_and_the_torn_one_is_named(
    upload: Any, evaluations: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    result = upload(str(TORN))

    assert (result.status, result.episodes) == ("COMPLETED", 1)
    assert len(evaluations.rows(result.evaluation_id)) == 1
    provenance = evaluations(result.evaluation_id)["metadata"]["upload"]
    assert provenance["bad_lines"] == 1
    assert provenance["bad_lines_named"]["2"].startswith("torn: it ends inside an object")
    assert "Line 2 is torn: it ends inside an object" in caplog.text
    assert "1 line(s) are no whole record" in caplog.text


def test_a_score_that_is_null_or_not_a_number_loses_no_record(
    upload: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    as_null = DATA / "weird-nan"
    as_nan = copied(
        as_null, tmp_path, edit=lambda raw: raw.replace(b'"score":null', b'"score":NaN')
    )
    assert b"NaN" in (as_nan / "traces.jsonl").read_bytes()
    results = [upload(str(as_null)), upload(str(as_nan))]

    rows = [canonical(evaluations.rows(result.evaluation_id)) for result in results]
    assert len(rows[0]) == 2
    assert rows[0] == rows[1]
    assert results[0].summary == results[1].summary


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: raw.replace(b"\n", b"\n\n \r\n"),
        lambda raw: b"\xef\xbb\xbf" + raw.removesuffix(b"\n"),
        lambda raw: b"no record\n" + raw.replace(b"\n", b"\n[7]\n", 1) + raw[:500],
        lambda raw: raw[:500] + raw,
    ],
    ids=["CRLF", "blank lines", "BOM and no final newline", "foreign and torn lines", "glued"],
)
def test_what_surrounds_the_records_changes_nothing(
    upload: Any, evaluations: Evaluations, tmp_path: Path, edit: Any
) -> None:
    assert_is(CLEAN, upload(str(copied(CLEAN, tmp_path, edit=edit))), evaluations)


def test_a_line_separator_in_a_text_stays_in_it(
    upload: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    folder = copied(
        CLEAN, tmp_path, edit=lambda raw: raw.replace(b"You add.", "You\u2028add\x85.".encode())
    )
    rows = evaluations.rows(upload(str(folder)).evaluation_id)

    assert len(rows) == 12
    assert rows[0]["completion"][0]["content"] == "You\u2028add\x85."


def test_a_file_of_episodes_is_told_by_its_episodes(
    upload: Any, evaluations: Evaluations, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jsonl"
    shutil.copy(CLEAN / "traces.jsonl", file)
    evaluation = assert_is(CLEAN, upload(str(file)), evaluations)

    assert (evaluation["name"], evaluation["model_name"]) == ("clean", "fake-model")
    assert "config_source" not in evaluation["metadata"]


def test_bare_traces_reach_the_traces_only(
    upload: Any, evaluations: Evaluations, platform: LocalPlatform, tmp_path: Path
) -> None:
    file = tmp_path / "bare.jsonl"
    episodes = [json.loads(line) for line in (CLEAN / "traces.jsonl").read_bytes().splitlines()]
    traces = [trace for episode in episodes for trace in episode["traces"]]
    file.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    result = upload(str(file), environment="toy-eval")

    assert (result.status, result.episodes) == ("COMPLETED", 0)
    assert evaluations.rows(result.evaluation_id) == []
    with platform.credentials.get_traces_client() as client:
        stored = list(client.iter(run_id=result.evaluation_id))
    assert {trace.trace_id for trace in stored} == {trace["id"] for trace in traces}


def test_sample_rows_reach_the_samples_only(
    upload: Any, evaluations: Evaluations, platform: LocalPlatform, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in expected_rows(CLEAN)))
    result = upload(str(file))

    assert (result.status, result.episodes) == ("COMPLETED", 0)
    assert canonical(evaluations.rows(result.evaluation_id)) == canonical(expected_rows(CLEAN))
    with platform.credentials.get_traces_client() as client:
        assert list(client.iter(run_id=result.evaluation_id)) == []


def test_parameters_go_before_what_the_run_says(upload: Any, evaluations: Evaluations) -> None:
    result = upload(
        str(DATA / "errors"),
        environment=["other", "second"],
        model="another-model",
        evaluation_name="a {name} of its own",
        framework="home-made",
        tags=["again"],
        config={"temperature": 0.5},
    )
    evaluation = evaluations(result.evaluation_id)

    assert evaluation["name"] == "a {name} of its own"
    assert (evaluation["model_name"], evaluation["dataset"]) == ("another-model", "other")
    assert evaluation["framework"] == "home-made"
    assert len(evaluation["environments"]) == 2
    assert "again" in evaluation["tags"]
    assert evaluation["metadata"]["temperature"] == 0.5
    assert "config_source" not in evaluation["metadata"]


def test_a_record_that_is_rejected_is_named_by_its_line(
    upload: Any, evaluations: Evaluations, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def with_a_second_version(raw: bytes) -> bytes:
        first = json.loads(raw.splitlines()[0])
        return raw + json.dumps({**first, "ok": False}).encode() + b"\n"

    result = upload(str(copied(CLEAN, tmp_path, edit=with_a_second_version)))

    assert_is(CLEAN, result, evaluations)
    assert result.rejected == 1
    assert "Line 13: its record was set aside" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"hello\n", "holds no record in 1 line"),
        (b'{"id": "a", "traces": []}\n', "which environment was evaluated: pass environment="),
        (b'{"id": "a", "traces": [], "env": {"id": "a@1.2"}}', "cannot have.*Pass environment="),
    ],
)
def test_what_cannot_be_uploaded_is_one_clear_error_and_no_evaluation(
    upload: Any, platform: LocalPlatform, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "records.jsonl"
    if content is not None:
        file.write_bytes(content)
    before = len(platform.requests)

    with pytest.raises(ConfigurationError, match=message):
        upload(str(file))
    assert len(platform.requests) == before


def test_a_directory_without_records_is_one_clear_error(upload: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"without a traces\.jsonl"):
        upload(str(tmp_path))


def test_a_config_that_cannot_be_kept_is_an_error_before_any_request(
    upload: Any, platform: LocalPlatform, tmp_path: Path
) -> None:
    folder = copied(DATA / "errors", tmp_path)
    (folder / "configs/eval.toml").write_bytes("name = 'café'".encode("latin-1"))
    before = len(platform.requests)

    with pytest.raises(ConfigurationError, match=r"eval\.toml.* is not UTF-8"):
        upload(str(folder))
    assert len(platform.requests) == before


def test_without_a_key_there_is_nowhere_to_upload_to() -> None:
    with pytest.raises(ConfigurationError, match="no API key to upload with"):
        deployable(str(CLEAN))


def test_an_evaluation_that_cannot_be_opened_fails_the_upload(platform: LocalPlatform) -> None:
    wrong_key = platform.credentials.model_copy(update={"api_key": "of-somebody-else"})
    refused = deployable.with_options(
        credentials=type(platform.credentials)(
            api_key=wrong_key.api_key, base_url=platform.url, traces_url=platform.url
        )
    )
    with pytest.raises(UploadFailedError, match="could not be opened"):
        refused(str(CLEAN))


def test_a_named_block_holds_the_credentials(
    platform: LocalPlatform, evaluations: Evaluations
) -> None:
    from prefect_prime.blocks import PrimeCredentials  # noqa: PLC0415 - registers itself

    name = f"upload-{uuid4().hex[:8]}"
    own = platform.credentials
    block: Any = PrimeCredentials(
        api_key=own.api_key, base_url=own.base_url, traces_url=own.traces_url
    )
    block.save(name)

    assert_is(CLEAN, deployable(str(CLEAN), credentials=name), evaluations)


def test_it_is_deployable_by_its_module() -> None:
    from prefect.flows import load_flow_from_entrypoint  # noqa: PLC0415 - only here

    deployment: Any = deployable.to_deployment("upload", parameters={"path": "outputs/run"})

    assert deployable._entrypoint == "prefect_prime.flows.upload:upload"
    assert load_flow_from_entrypoint("prefect_prime.flows.upload:upload") is deployable
    assert deployment.parameters == {"path": "outputs/run"}
    schema = deployable.parameters
    assert schema.required == ["path"]
    assert "A run directory" in schema.properties["path"]["description"]


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "prefect_prime.flows.upload", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_explains_itself() -> None:
    shown = command("--help")

    assert shown.returncode == 0
    assert "--environment" in shown.stdout
    assert "--credentials" in shown.stdout


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    shown = command(str(tmp_path), PRIME_API_KEY="a-key")

    assert (shown.returncode, shown.stdout) == (1, "")
    assert "is a directory without a traces.jsonl" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_command_uploads(platform: LocalPlatform) -> None:
    from prefect.server.api.server import SubprocessASGIServer  # noqa: PLC0415 - only here
    from prefect.settings import PREFECT_API_URL  # noqa: PLC0415 - only here

    server = PREFECT_API_URL.value() or SubprocessASGIServer().api_url
    shown = command(
        str(CLEAN),
        "--evaluation-name",
        "from a shell",
        PREFECT_API_URL=server,
        PRIME_API_KEY=platform.credentials.api_key.get_secret_value(),
        PRIME_API_BASE_URL=platform.url,
        PRIME_FRONTEND_URL=platform.url,
        PRIME_TRACES_URL=platform.url,
    )

    assert shown.returncode == 0, shown.stderr
    assert "COMPLETED: 12 episode(s)" in shown.stdout
    assert f"{platform.url}/dashboard/evaluations/" in shown.stdout
