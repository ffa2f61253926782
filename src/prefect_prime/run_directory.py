"""A finished run on disk: what it says about itself, and what its records say.

A run directory is what verifiers leaves behind: ``traces.jsonl``, the launched config in
``configs/eval.toml`` and the resolved one in ``configs/resolved/eval.json``. A single JSONL
file is a run without the configs, unless it is such a directory's ``traces.jsonl``.

The file of records is read through once before anything is opened, in constant memory: what
it cannot tell is an error while nothing exists yet, and its flaws are known from the start.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_prime.encoding import number
from prefect_prime.errors import ConfigurationError
from prefect_prime.record_lines import Line, read_lines
from prefect_prime.records import kind_of

RECORDS_FILE = "traces.jsonl"
_LAUNCHED = Path("configs", "eval.toml")
_RESOLVED = Path("configs", "resolved", "eval.json")

#: How many flawed lines, and how many environments, are named; the rest is counted.
MAX_NAMED = 50
#: A time outside 2000 to 2100 is a clock that did not count seconds.
_TIMES = (946_684_800, 4_102_444_800)


@dataclass
class Survey:
    """What a file of records holds. Times are seconds since 1970."""

    lines: int = 0
    blank_lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    #: By line number, the reason; the first ``MAX_NAMED`` of ``bad_lines``.
    named: dict[int, str] = field(default_factory=dict)
    bad_lines: int = 0
    environments: list[str] = field(default_factory=list)
    model: str | None = None
    name: str | None = None
    framework: str | None = None
    started_at: float | None = None
    ended_at: float | None = None

    def add(self, line: Line) -> None:
        """Count one line and look into its records."""
        self.lines += 1
        if line.flaw == "blank":
            self.blank_lines += 1
        elif line.flaw is not None:
            self.bad_lines += 1
            if len(self.named) < MAX_NAMED:
                self.named[line.number] = f"{line.flaw}: {line.reason}"
        for record in line.records:
            kind = f"{kind_of(record)}s"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            for part in _parts(record):
                self._look_into(part)

    def _look_into(self, part: Mapping[str, Any]) -> None:
        environment = _text(part, "env", "id")
        if (
            environment is not None
            and environment not in self.environments
            and len(self.environments) < MAX_NAMED
        ):
            self.environments.append(environment)
        self.model = self.model or _text(part, "agent", "config", "model")
        self.name = self.name or _text(part, "run", "name")
        if isinstance(part.get("verifiers"), Mapping):
            self.framework = "verifiers"
        for time in _times(part):
            self.started_at = time if self.started_at is None else min(self.started_at, time)
            self.ended_at = time if self.ended_at is None else max(self.ended_at, time)


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run as it lies on disk. ``environments`` is empty where nothing names one."""

    records: Path
    config: Path | None
    name: str | None
    environments: list[str]
    model: str | None
    framework: str | None
    survey: Survey

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the evaluation comes from, for its metadata: file, original times, line counts.

        ``bad_lines`` counts lines that are no record (blank ones apart), and
        ``bad_lines_named`` says what is wrong, by line number, with the first of them.
        """
        survey = self.survey
        found: dict[str, Any] = {
            "file": f"{self.records.parent.name}/{self.records.name}",
            "started_at": _iso(survey.started_at),
            "ended_at": _iso(survey.ended_at),
            **survey.counts,
            "lines": survey.lines,
            "blank_lines": survey.blank_lines,
            "bad_lines": survey.bad_lines,
        }
        if survey.named:
            found["bad_lines_named"] = {str(line): why for line, why in survey.named.items()}
        return {key: value for key, value in found.items() if value is not None}


def records_file(path: str | Path) -> Path:
    """The file of records at ``path``, a run directory or the file itself.

    ConfigurationError where there is none.
    """
    try:
        given = Path(path).expanduser().absolute()
        if given.is_dir():
            given /= RECORDS_FILE
            if not given.is_file():
                raise ConfigurationError(
                    f"{str(path)!r} is a directory without a {RECORDS_FILE}: give the directory"
                    " of a finished run, or a JSONL file"
                )
        elif not given.is_file():
            problem = "is no regular file" if given.exists() else "does not exist"
            raise ConfigurationError(
                f"{str(path)!r} {problem} (looked for at {given}): give the directory"
                " of a finished run, or a JSONL file"
            )
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read ({error})") from None
    return given


def read_run(path: str | Path) -> FinishedRun:
    """Everything there is to know before the upload of ``path`` begins.

    The resolved config comes before the launched one, and both before the records. Raises
    ConfigurationError for a path that is no run, and for a file without a single record.
    """
    records = records_file(path)
    survey = _survey(records, path)
    folder = records.parent
    config = None
    says: list[Mapping[str, Any]] = []
    if records.name == RECORDS_FILE:
        says = [_parsed(folder / _RESOLVED), _parsed(folder / _LAUNCHED)]
        config = next((file for file in (_LAUNCHED, _RESOLVED) if (folder / file).exists()), None)

    def configured(*keys: str) -> str | None:
        return next((text for said in says if (text := _text(said, *keys)) is not None), None)

    taskset = configured("env", "taskset", "id")
    return FinishedRun(
        records=records,
        config=None if config is None else folder / config,
        name=configured("run", "name") or survey.name,
        environments=[taskset] if taskset else _on_the_hub(survey.environments),
        model=configured("model") or survey.model,
        framework="verifiers" if taskset else survey.framework,
        survey=survey,
    )


def _survey(records: Path, path: str | Path) -> Survey:
    survey = Survey()
    try:
        for line in read_lines(records):
            survey.add(line)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    if not survey.counts:
        found = "is empty"
        if survey.named:
            first, why = next(iter(survey.named.items()))
            found = f"holds no record in {survey.lines} line(s); line {first} is {why}"
        elif survey.lines:
            found = f"holds nothing but {survey.lines} blank line(s)"
        raise ConfigurationError(
            f"{records} {found}. Records are episodes, traces or v0 sample rows, one JSON object"
            " a line."
        )
    return survey


def _on_the_hub(environments: list[str]) -> list[str]:
    """The names that verifiers gives the hub: of ``<environment>+<taskset>``, the taskset."""
    return list(dict.fromkeys(name.rpartition("+")[2] for name in environments))


def _parts(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The record, and what else of it tells where it comes from."""
    yield record
    yield from record.get("traces") or ()
    info = record.get("info")
    wrapper = info.get("native_wrapper") if isinstance(info, Mapping) else None
    if isinstance(wrapper, Mapping):  # the episode that a sample row was made from
        yield wrapper


def _times(part: Mapping[str, Any]) -> Iterator[float]:
    timing = part.get("timing")
    if isinstance(timing, Mapping):
        ends = [stage.get("end") for stage in timing.values() if isinstance(stage, Mapping)]
        for value in (timing.get("start"), *ends):
            time = number(value)
            if time is not None and _TIMES[0] <= time < _TIMES[1]:
                yield time


def _iso(time: float | None) -> str | None:
    return None if time is None else datetime.fromtimestamp(time, UTC).isoformat()


def _text(mapping: Mapping[str, Any], *keys: str) -> str | None:
    """The text at a place of nested mappings; None for anything else, and for blank text."""
    value: Any = mapping
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value.strip() or None if isinstance(value, str) else None


def _parsed(file: Path) -> Mapping[str, Any]:
    """A config's content; empty where there is none, or none that can be understood."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        parsed = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, Mapping) else {}
