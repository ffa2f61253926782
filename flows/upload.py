"""``upload``: a finished run, from its directory or its JSONL file, as one evaluation.

What the evaluation is comes from the run's configs where they are there, else from its
records, and parameters go before both. The file is read through before anything is opened,
so that a path that is no run, or a run that names no environment, costs nothing.

A line that is no record never costs the others: it is named in the log with its number,
and counted in the evaluation's metadata under ``upload`` (see ``FinishedRun.provenance``).
A record that the spool rejects is named in the log with its line number, and counted in the
result's ``rejected``.

``python -m prefect_prime.flows.upload PATH`` does the same from a shell.
"""

# ruff: noqa: ARG001 - what a flow's parameters say is read by its plan

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect.logging import get_run_logger

from prefect_prime.config_source import read_config
from prefect_prime.environments import EnvironmentRef
from prefect_prime.errors import ConfigurationError, PrefectPrimeError, UploadFailedError
from prefect_prime.flows.credentials import load_credentials
from prefect_prime.flows.decorator import EvalFlow
from prefect_prime.flows.options import EvalOptions, EvalPlan
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.run import EvalRun, current_run
from prefect_prime.record_lines import Line, read_lines
from prefect_prime.run_directory import FinishedRun, read_run, records_file
from prefect_prime.settings import load_settings
from prefect_prime.tasks import EvaluationSpec

#: An environment as ``eval_flow`` takes it.
Environment = str | dict[str, str]

#: Bad lines that the log names one by one.
_NAMED = 20
#: Seconds without a single record arriving after which the upload leaves the rest behind.
_PATIENCE = 60.0


class UploadFlow(EvalFlow):
    """An eval flow that plans by what lies at its ``path``.

    Of the options of ``eval_flow``, ``tags``, ``credentials``, ``description`` and
    ``on_error`` count; nothing in them is a template.
    """

    def plan(self, parameters: Mapping[str, Any]) -> EvalPlan:
        """What an upload with these parameters opens; raises ``ConfigurationError``."""
        options = self.options
        credentials = parameters.get("credentials") or options.credentials
        settings = load_settings()
        if settings.mode == "online" and load_credentials(credentials, settings) is None:
            raise ConfigurationError(
                "there is no API key to upload with: set PRIME_API_KEY, or pass credentials="
                " the name of a Prime Credentials block"
            )
        run = read_run(parameters["path"])
        environments = _environments(parameters.get("environment"), run)
        model = parameters.get("model") or run.model
        first = environments[0]
        default_name = "-".join(part for part in (first.dataset or first.id, model) if part)
        return EvalPlan(
            spec=EvaluationSpec(
                name=parameters.get("evaluation_name") or run.name or default_name,
                environments=environments,
                model=model,
                framework=parameters.get("framework") or run.framework,
                description=options.description,
                tags=[*options.tags, *(parameters.get("tags") or ())],
                metadata={
                    **read_config(parameters.get("config") or run.config, run.records.parent),
                    "upload": run.provenance,
                },
            ),
            credentials=credentials,
            expected=run.survey.counts.get("episodes"),
            on_error=options.on_error,
        )


def _environments(given: Any, run: FinishedRun) -> list[EnvironmentRef]:
    listed = [given] if isinstance(given, str | Mapping) else list(given or ())
    if listed:
        return [EnvironmentRef.parse(value) for value in listed]
    if not run.environments:
        raise ConfigurationError(
            f"nothing in {run.records} or beside it says which environment was evaluated: pass"
            " environment='my-env', 'owner/my-env' or {'id': '...'}"
        )
    try:
        return [EnvironmentRef.parse(value) for value in run.environments]
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{run.records} names an environment that the hub cannot have: {error}. Pass"
            " environment=... in its place."
        ) from None


def _flow(fn: Callable[..., Any]) -> UploadFlow:
    return UploadFlow(fn, EvalOptions(), flow_run_name="upload {path}")


@_flow
def upload(  # noqa: PLR0917 - a flow's parameters are passed by name
    path: str,
    environment: Environment | list[Environment] | None = None,
    model: str | None = None,
    evaluation_name: str | None = None,
    framework: str | None = None,
    tags: list[str] | None = None,
    config: str | dict[str, Any] | None = None,
    credentials: str | None = None,
) -> EvalResult | None:
    """Send a finished run as one evaluation.

    Args:
        path: A run directory (traces.jsonl, and configs/ if it is there), or one JSONL file
            of episodes, bare traces or v0 sample rows.
        environment: "name", "owner/name" or {"id": ..., "version_id": ...}, or a list of
            them; by default what the run's config names, else what its episodes name.
        model: By default the config's, else the first record's.
        evaluation_name: By default the run's name, else "<environment>-<model>".
        framework: By default "verifiers" where the run is one of verifiers.
        tags: Tags of the evaluation.
        config: A file or a mapping, in place of the run's own config.
        credentials: The name of a Prime Credentials block; by default PRIME_API_KEY, then
            the prime command's own login.
    """
    run = current_run()
    if run.id is None and load_settings().mode == "online":
        raise UploadFailedError("the evaluation could not be opened, so nothing was sent")
    flaws = _Flaws()
    for line in read_lines(records_file(path)):
        for record in line.records:
            rejected = run.rejected_records
            run.log_episodes([record])
            if run.rejected_records > rejected:
                flaws.log.error("Line %d: its record was set aside, as said above.", line.number)
        flaws.add(line)
    flaws.tell()
    _send(run)
    return None  # and so the flow returns its EvalResult


class _Flaws:
    """Names the lines that are no records while they pass, and sums them up."""

    def __init__(self) -> None:
        self.log = get_run_logger()
        self._bad = 0
        self._blank = 0

    def add(self, line: Line) -> None:
        if line.flaw == "blank":
            self._blank += 1
        elif line.flaw is not None:
            self._bad += 1
            if self._bad <= _NAMED:
                self.log.warning("Line %d is %s: %s.", line.number, line.flaw, line.reason)

    def tell(self) -> None:
        if self._bad:
            more = f", of which the first {_NAMED} are named above" if self._bad > _NAMED else ""
            self.log.warning("%d line(s) are no whole record%s.", self._bad, more)
        if self._blank:
            self.log.info("%d blank line(s) were passed over.", self._blank)


def _send(run: EvalRun) -> None:
    """Wait for the uploads for as long as they get on: to send is all there is to do."""
    left = run.pending_records
    while not run.flush(_PATIENCE) and run.pending_records != left:
        left = run.pending_records


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.flows.upload",
        description="Send a finished run as one evaluation.",
    )
    parser.add_argument(
        "path", metavar="PATH", help="a run directory, or a JSONL file of its records"
    )
    parser.add_argument(
        "--environment",
        metavar="NAME",
        action="append",
        help="name or owner/name; may be repeated (default: what the run says)",
    )
    parser.add_argument("--model", help="(default: what the run says)")
    parser.add_argument(
        "--evaluation-name",
        metavar="NAME",
        help="(default: the run's name, else <environment>-<model>)",
    )
    parser.add_argument("--framework", metavar="NAME", help="(default: what the run says)")
    parser.add_argument(
        "--tag", metavar="TAG", action="append", dest="tags", help="may be repeated"
    )
    parser.add_argument("--config", metavar="FILE", help="in place of the run's own config")
    parser.add_argument(
        "--credentials",
        metavar="BLOCK",
        help="a Prime Credentials block (default: PRIME_API_KEY, then ~/.prime/config.json)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Upload once; returns the exit status: 0 if everything arrived."""
    parameters = vars(_parser().parse_args(arguments))
    try:
        upload.plan(parameters)  # what is wrong is said before Prefect says it with a traceback
        result = upload(**parameters)
    except PrefectPrimeError as error:
        print(f"Nothing more is sent: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    place = result.url or "no evaluation, because PRIME_RUNS_MODE is not online"
    lines = [f"{result.status}: {result.episodes} episode(s)", place]
    lost = {sink: counts for sink, counts in result.losses.items() if any(counts.values())}
    lines += [f"{sink}: {counts}" for sink, counts in lost.items()]
    if result.rejected:
        lines.append(f"{result.rejected} record(s) were set aside; the log says why")
    print("\n".join(lines))  # noqa: T201 - a command
    return 1 if lost or result.rejected or result.dropped else 0


if __name__ == "__main__":
    sys.exit(main())
