"""``evaluate``: a verifiers evaluation, from the ``eval.toml`` that is there, as a tracked flow.

It runs in this process through verifiers' own parts. Each episode is written to the run's
directory and logged as it completes, so a retry, in this process or another, runs what is
missing and nothing else. verifiers' own upload stays off: this flow is the one that uploads.

``python -m prefect_prime.flows.evaluate CONFIG`` does the same from a shell.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.logging.loggers import get_logger
from pydantic import PositiveInt
from pydantic_core import PydanticSerializationError

from prefect_prime.environments import EnvironmentRef
from prefect_prime.errors import PrefectPrimeError
from prefect_prime.eval_config import LaunchedEval, read_eval
from prefect_prime.eval_directory import EvalDirectory
from prefect_prime.eval_rollouts import Rollouts
from prefect_prime.flows.decorator import EvalFlow
from prefect_prime.flows.interruption import run_interruptibly
from prefect_prime.flows.options import EvalOptions, EvalPlan, read_gates
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.run import EvalRun, current_run
from prefect_prime.tasks import EvaluationSpec

if TYPE_CHECKING:
    from verifiers.v1.episode import Episode

#: Characters of a flow run's id that name a directory: its last ones, which are random.
TICKET = 12

#: Seconds of a flow's time-out, at most, that are kept for the rollouts to let go of what
#: they hold.
_RESERVE = 5.0


class _Prepared:
    """A config, its tasks and its directory, all of them found good."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.deadline = _deadline()
        self.flow_run = _flow_run_id()
        ticket = None if self.flow_run is None else self.flow_run.replace("-", "")[-TICKET:]
        self.launched = _read(parameters, ticket)
        self.rollouts = Rollouts(self.launched.config)
        self.directory = EvalDirectory(self.launched, self.flow_run)
        self.directory.check(self.rollouts.planned)


#: From the plan to the body, which follows it in the same thread: tasks are loaded once.
_prepared: ContextVar[_Prepared | None] = ContextVar("prefect_prime_eval", default=None)


class EvaluateFlow(EvalFlow):
    """An eval flow that plans by what its ``config`` says.

    Of the options of ``eval_flow``, ``tags``, ``credentials``, ``description``, ``gates``
    and ``on_error`` count; of these, ``gates`` alone may name a parameter.
    """

    def plan(self, parameters: Mapping[str, Any]) -> EvalPlan:
        """What a run with these parameters opens; raises ``ConfigurationError``.

        The environment is loaded first, so one that cannot be costs no evaluation.
        """
        prepared = _Prepared(parameters)
        _prepared.set(prepared)
        launched, rollouts = prepared.launched, prepared.rollouts
        environment = EnvironmentRef.parse(launched.environment)
        config = launched.config
        plan = EvalPlan(
            spec=EvaluationSpec(
                name=launched.name or f"{environment.dataset}-{config.model}",
                environments=[environment],
                model=config.model,
                framework="verifiers",
                description=self.options.description,
                tags=list(self.options.tags),
                metadata={
                    **launched.metadata,
                    # What the dashboard's lists read, as verifiers gives it.
                    "model": config.model,
                    "num_examples": len(rollouts.tasks),
                    "rollouts_per_example": config.num_rollouts,
                },
            ),
            credentials=parameters.get("credentials") or self.options.credentials,
            expected=rollouts.planned,
            on_error=self.options.on_error,
            gates=read_gates(self.options.gates, parameters),
            flow_name=self.name,
        )
        return plan.attached_to(launched.attach) if launched.attach else plan


def _deadline() -> float | None:
    """When the rollouts are to end, a little before Prefect's own alarm: in good order."""
    context = FlowRunContext.get()
    limit = context.flow.timeout_seconds if context and context.flow else None
    return None if limit is None else time.monotonic() + limit - min(_RESERVE, limit / 10)


def _flow_run_id() -> str | None:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and context.flow_run else None


def _read(parameters: Mapping[str, Any], ticket: str | None = None) -> LaunchedEval:
    return read_eval(
        parameters["config"],
        model=parameters.get("model"),
        num_rollouts=parameters.get("num_rollouts"),
        overrides=parameters.get("overrides"),
        ticket=ticket,
    )


def _flow(fn: Callable[..., Any]) -> EvaluateFlow:
    return EvaluateFlow(fn, EvalOptions(gates="{gates}"), flow_run_name="evaluate {config}")


@_flow
def evaluate(
    config: str,
    model: str | None = None,
    num_rollouts: PositiveInt | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006 - Prefect's schema shows it, nothing changes it
    credentials: str | None = None,
    *,
    gates: list[dict[str, Any]] | None = None,
) -> EvalResult | None:
    """Run a verifiers evaluation.

    Args:
        config: The path of its eval.toml, or of a run's configs/resolved/eval.json.
        model: In place of the config's.
        num_rollouts: Episodes per task, in place of the config's.
        overrides: Other settings in place of the config's, by their dotted name
            ({"sampling.temperature": 0.2}) or nested as in the file.
        credentials: The name of a Prime Credentials block; by default PRIME_API_KEY, then
            the prime command's own login.
        gates: What the evaluation must reach: [{"metric": "avg_reward", "minimum": 0.6}].
    """
    prepared = _prepared.get()
    _prepared.set(None)
    if prepared is None or prepared.flow_run != _flow_run_id():  # called as a plain function
        given = {"config": config, "model": model, "num_rollouts": num_rollouts, "gates": gates}
        prepared = _Prepared({**given, "overrides": overrides, "credentials": credentials})
    evaluation = _Evaluation(current_run(), prepared)
    with prepared.directory.entered(prepared.rollouts.planned):
        run_interruptibly(evaluation.run, prepared.deadline)
    evaluation.tell()
    return None  # and so the flow returns its EvalResult


class _Evaluation:
    """What is done with the episodes of one attempt."""

    def __init__(self, run: EvalRun, prepared: _Prepared) -> None:
        self._run = run
        self._prepared = prepared
        self._lock = asyncio.Lock()
        self._failed: Counter[str] = Counter()
        self._log: Any = get_run_logger() if prepared.flow_run else get_logger("prefect_prime")

    async def run(self) -> None:
        """Log what is there already, then run what is owed."""
        rollouts, directory = self._prepared.rollouts, self._prepared.directory
        owed = self._unlogged(directory.plan(rollouts.tasks, rollouts.complete))
        directory.own(self._run.id)
        missing = sum(count for _, count in owed)
        self._log.info(
            "%d rollouts of %d tasks, %d of them to run: %s",
            rollouts.planned,
            len(rollouts.tasks),
            missing,
            directory.path,
        )
        for episode in directory.kept():
            await asyncio.to_thread(self._run.log_episodes, [episode])
        run_id = self._run.id or self._prepared.flow_run or directory.path.name
        if owed:
            await rollouts.run(owed, run_id, self._keep)

    def _unlogged(self, owed: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """What is owed, less what an earlier attempt logged into a directory that is gone.

        A worker runs each attempt in a folder of its own, unless it is told otherwise.
        """
        if self._run.attempt == 1:
            return owed
        logged = self._run.logged
        wanted: int = self._prepared.launched.config.num_rollouts
        left = [(task, min(count, wanted - logged[task.data.idx])) for task, count in owed]
        return [(task, count) for task, count in left if count > 0]

    async def _keep(self, episode: "Episode") -> None:
        """One episode is finished: into the run's directory, then into the evaluation."""
        from verifiers.v1.utils.trace_store import append_episode  # noqa: PLC0415 - an extra

        if not episode.ok:
            self._failed.update([_cause(episode)])
        # Both in one go: an example's rollouts are numbered in the order of the directory.
        async with self._lock:
            try:
                await append_episode(self._prepared.directory.path, episode, asyncio.Lock())
            except PydanticSerializationError as error:
                self._log.error(
                    "Episode %s is not in the run's directory, and a retry runs it again: %s",
                    episode.id,
                    error,
                )
            await asyncio.to_thread(self._run.log_episodes, [episode])

    def tell(self) -> None:
        """Say how many rollouts ended with an error, and with which."""
        if self._failed:
            causes = ", ".join(f"{cause} {n}" for cause, n in self._failed.most_common())
            self._log.warning(
                "%d rollout(s) ended with an error (%s); %s has each with its error.",
                self._failed.total(),
                causes,
                self._prepared.directory.traces,
            )


def _cause(episode: "Episode") -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return str(errors[-1].type) if errors else "no error recorded"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.flows.evaluate",
        description="Run a verifiers evaluation as a tracked flow.",
    )
    parser.add_argument("config", metavar="CONFIG", help="an eval.toml")
    parser.add_argument("--model", help="in place of the config's")
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that one evaluation and a suite of them have in common."""
    parser.add_argument(
        "--num-rollouts", type=int, metavar="N", help="episodes per task, in place of the config's"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        dest="overrides",
        type=_override,
        default=[],
        help="any other setting, by its dotted name: sampling.temperature=0.2; may be repeated",
    )
    parser.add_argument(
        "--credentials",
        metavar="BLOCK",
        help="a Prime Credentials block (default: PRIME_API_KEY, then ~/.prime/config.json)",
    )


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a text needs no quotes


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate once; returns the exit status: 0 if everything arrived."""
    parameters = vars(_parser().parse_args(arguments))
    parameters["overrides"] = dict(parameters["overrides"])
    try:
        _read(parameters)  # what is wrong is said before Prefect says it with a traceback
        result = evaluate(**parameters)
    except PrefectPrimeError as error:
        print(f"There is no evaluation: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    lost = {sink: counts for sink, counts in result.losses.items() if any(counts.values())}
    lines = [f"{result.status}: {result.episodes} episode(s)"]
    lines += [result.url] if result.url else []
    lines += [f"{name}: {value}" for name, value in result.summary.items()]
    lines += [f"{sink}: {counts}" for sink, counts in lost.items()]
    print("\n".join(lines))  # noqa: T201 - a command
    return 1 if lost or result.rejected or result.dropped else 0


if __name__ == "__main__":
    sys.exit(main())
