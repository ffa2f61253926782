"""``suite``: several verifiers evaluations in one flow, and one table over all of them.

Each config with each model is an evaluation of its own, run by ``evaluate`` as a subflow, one
after the other: each has the machine and the endpoint to itself, as it has alone. One that
fails does not take the others with it; the suite fails at its end, and its table says why.

Run again, the suite starts only what did not complete, and that goes on in its directory.

``python -m prefect_prime.flows.suite CONFIG... --model MODEL`` does the same from a shell.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prefect import flow, tags
from prefect.artifacts import TableArtifact
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import FailedRun
from prefect.states import Completed, Failed
from pydantic import PositiveInt

from prefect_prime.errors import ConfigurationError
from prefect_prime.eval_config import LaunchedEval, read_eval
from prefect_prime.flows.evaluate import TICKET, add_arguments, evaluate
from prefect_prime.flows.result import EvalResult

#: Under which Prefect shows the tables of all suites, the newest first.
_KEY: Final = "prime-suite"
#: Characters of a reason that a table has room for.
_REASON: Final = 300

Row = dict[str, Any]


@flow(flow_run_name="suite of {configs}")
def suite(
    configs: list[str],
    models: list[str] | None = None,
    num_rollouts: PositiveInt | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006 - Prefect's schema shows it, nothing changes it
    credentials: str | None = None,
) -> State[list[Row]]:
    """Run several verifiers evaluations, one after the other.

    Args:
        configs: The paths of their eval.tomls.
        models: Each config is evaluated with each of them; by default with its own.
        num_rollouts: Episodes per task, in place of the configs'.
        overrides: Other settings in place of the configs'.
        credentials: The name of a Prime Credentials block.
    """
    context = FlowRunContext.get()
    here = str(context.flow_run.id) if context and context.flow_run else ""
    parent = f"prefect-parent:{here}"
    # A result that is kept is what tells Prefect, on a retry, that this one is done.
    member = evaluate.with_options(tags=[parent], persist_result=True)
    each_model: Sequence[str | None] = models or [None]
    rows: list[Row] = []
    try:
        for config in configs:
            for model in each_model:
                given: dict[str, Any] = {"model": model, "num_rollouts": num_rollouts}
                ticket = f"{here.replace('-', '')[-TICKET:]}-{len(rows) + 1}"
                launched = _launched(config, {**given, "overrides": overrides}, ticket)
                own = {} if launched is None else _place(launched, several=len(each_model) > 1)
                with tags(parent):
                    state: Any = member(
                        config,
                        **given,
                        overrides={**overrides, **own},
                        credentials=credentials,
                        return_state=True,
                    )
                rows.append(_row(config, model, launched, state))
    finally:  # what is there is shown, also of a suite that was interrupted
        if rows:
            TableArtifact(
                key=_KEY, table=rows, description=f"{len(rows)} evaluation(s) of suite {here}"
            ).create(_sync=True)  # type: ignore[call-arg]  # Prefect's own switch
    failed = [row for row in rows if row["reason"]]
    if failed:
        named = "; ".join(f"{row['config']} with {row['model']}: {row['reason']}" for row in failed)
        return Failed(message=f"{len(failed)} of {len(rows)} evaluations failed: {named}")
    return Completed(message=f"{len(rows)} evaluations completed", data=rows)


def _launched(config: str, given: Mapping[str, Any], ticket: str) -> LaunchedEval | None:
    try:
        return read_eval(config, **given, ticket=ticket)
    except ConfigurationError:
        return None  # the evaluation says what is wrong, as a run of its own


def _place(launched: LaunchedEval, *, several: bool) -> dict[str, Any]:
    """Settings that keep the evaluations of one suite out of each other's directories.

    A run without a name gets a directory of this suite run, in which a retry of it resumes.
    """
    run = launched.config.run
    if launched.name is None:
        return {"run.dir": run.dir, "resume": True}
    if not several:
        return {}
    slug = launched.config.model.replace("/", "--")
    moved = {"run.dir": f"{run.dir}--{slug}"} if run.dir != run.name else {}
    return {"run.name": f"{run.name}--{slug}", **moved}


def _row(config: str, model: str | None, launched: LaunchedEval | None, state: State[Any]) -> Row:
    row: Row = {
        "config": config,
        "environment": None if launched is None else launched.environment,
        "model": model if launched is None else launched.config.model,
        "status": state.name,
        "episodes": None,
        "avg_reward": None,
        "avg_error": None,
        "evaluation": None,
        "reason": None,
    }
    if not state.is_completed():
        return {**row, "reason": (state.message or f"the run is {state.name}")[:_REASON]}
    result: EvalResult = state.result()
    return {
        **row,
        "status": result.status,
        "episodes": result.episodes,
        "avg_reward": result.summary.get("avg_reward"),
        "avg_error": result.summary.get("avg_error"),
        "evaluation": result.url,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite once; returns the exit status: 0 if every evaluation completed."""
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.flows.suite",
        description="Run several verifiers evaluations as one tracked flow.",
    )
    parser.add_argument("configs", metavar="CONFIG", nargs="+", help="an eval.toml")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        action="append",
        dest="models",
        help="evaluate each config with it; may be repeated (default: the config's own)",
    )
    add_arguments(parser)
    parameters = vars(parser.parse_args(arguments))
    parameters["overrides"] = dict(parameters["overrides"])
    try:
        rows: Any = suite(**parameters)
    except FailedRun as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    for row in rows:
        reward = row["avg_reward"]
        print(  # noqa: T201 - a command
            f"{row['status']}: {row['environment']} with {row['model']},"
            f" {row['episodes']} episode(s), avg_reward {reward:.4g}, {row['evaluation']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
