"""A finished run says what it is: by its configs, else by its records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import DATA, REAL_RUNS, expected_rows

from prefect_prime.errors import ConfigurationError
from prefect_prime.run_directory import MAX_NAMED, read_run

CLEAN = DATA / "clean"


def write(file: Path, *records: Any) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.mark.parametrize("folder", REAL_RUNS, ids=lambda folder: folder.name)
def test_a_real_run_is_told_by_its_config(folder: Path) -> None:
    run = read_run(folder)
    resolved = json.loads((folder / "configs/resolved/eval.json").read_bytes())

    assert run.name == resolved["run"]["name"]
    assert (run.environments, run.model, run.framework) == (
        ["toy-eval"],
        "fake-model",
        "verifiers",
    )
    assert run.config is not None
    assert run.survey.bad_lines == 0


def test_the_launched_config_goes_before_the_resolved_one() -> None:
    assert read_run(DATA / "errors").config == (DATA / "errors/configs/eval.toml").absolute()
    assert read_run(CLEAN).config == (CLEAN / "configs/resolved/eval.json").absolute()


def test_the_file_of_a_run_directory_is_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA / "errors")

    assert read_run("traces.jsonl") == read_run(DATA / "errors") == read_run(".")


@pytest.mark.parametrize("name", ["clean", "bestofn", "multi", "multi-empty"])
def test_without_configs_the_records_tell(name: str, tmp_path: Path) -> None:
    shutil.copy(DATA / name / "traces.jsonl", tmp_path)
    run = read_run(tmp_path)

    assert (run.name, run.environments) == (name, ["toy-eval"])
    assert run.model == (None if name == "multi-empty" else "fake-model")
    assert run.framework == (None if name == "multi-empty" else "verifiers")
    assert run.config is None


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"env": 7, "run": {"name": 3}}', "\udc80"])
def test_a_config_that_cannot_be_understood_leaves_it_to_the_records(
    tmp_path: Path, content: str
) -> None:
    shutil.copy(CLEAN / "traces.jsonl", tmp_path)
    (tmp_path / "configs/resolved").mkdir(parents=True)
    raw = content.encode(errors="surrogateescape")
    (tmp_path / "configs/resolved/eval.json").write_bytes(raw)
    run = read_run(tmp_path)

    assert (run.name, run.environments, run.model) == ("clean", ["toy-eval"], "fake-model")


def test_the_launched_config_tells_where_there_is_no_resolved_one(tmp_path: Path) -> None:
    write(tmp_path / "traces.jsonl", {"id": "a", "traces": []})
    (tmp_path / "configs").mkdir()
    shutil.copy(DATA / "errors/configs/eval.toml", tmp_path / "configs")
    run = read_run(tmp_path)

    assert (run.name, run.environments, run.model) == ("errors", ["toy-eval"], "fake-model")


def test_sample_rows_tell_by_the_episode_inside_them(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "rows.jsonl", *expected_rows(CLEAN)))

    assert (run.name, run.environments) == ("clean", ["toy-eval"])
    assert run.provenance["samples"] == 12


def test_several_environments_are_all_named_once(tmp_path: Path) -> None:
    episodes = [
        {"id": str(number), "traces": [], "env": {"id": name}}
        for number, name in enumerate(["gsm8k", "best-of-n+math", "gsm8k", "owner/code"])
    ]
    assert read_run(write(tmp_path / "a.jsonl", *episodes)).environments == [
        "gsm8k",
        "math",
        "owner/code",
    ]


def test_the_provenance_holds_the_original_times_and_every_count(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    torn = (DATA / "crash-torn/traces.jsonl").read_bytes()
    (folder / "traces.jsonl").write_bytes(torn + b"\n\n[]\n")

    provenance = read_run(folder).provenance
    named = provenance.pop("bad_lines_named")
    assert provenance == {
        "file": "mine/traces.jsonl",
        "started_at": "2026-12-01T12:01:25.790598+00:00",
        "ended_at": "2026-12-01T12:01:25.993120+00:00",
        "episodes": 1,
        "lines": 4,
        "blank_lines": 1,
        "bad_lines": 2,
    }
    assert {line: why.split(":")[0] for line, why in named.items()} == {"2": "torn", "4": "foreign"}


def test_however_many_lines_are_bad_few_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "a", "traces": []}\n' + "no record\n" * 1000)
    provenance = read_run(file).provenance

    assert (provenance["lines"], provenance["bad_lines"]) == (1001, 1000)
    assert len(provenance["bad_lines_named"]) == MAX_NAMED


@pytest.mark.parametrize("time", [None, "noon", True, 0, -1, 1e300, 1796126281073.0])
def test_a_time_that_cannot_be_meant_is_no_time(tmp_path: Path, time: Any) -> None:
    trace = {"id": "t", "nodes": [], "timing": {"start": time, "agent": {"end": time}, "x": 3}}
    assert "started_at" not in read_run(write(tmp_path / "a.jsonl", trace)).provenance


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "nothing but 2 blank"),
        (b"hello\n", "no record in 1 line.*line 1 is foreign: not JSON"),
    ],
)
def test_a_file_without_a_record_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_run(file)


def test_a_path_that_is_no_run_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist.*give the directory"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"is a directory without a traces\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(ConfigurationError, match="is no regular file"):
        read_run("/dev/null")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_run("~nobody-of-that-name/run")
