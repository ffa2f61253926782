"""``demo``: an eval that really evaluates something, written as anybody would write one.

Run by hand it tracks itself on whatever platform the environment names; as a deployment it
is the nightly eval of ``prefect.yaml``. ``python -m prefect_prime.flows.demo`` runs it on a
platform and a Prefect server of its own, on this machine alone, and shows what came of it.
"""

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import PositiveInt

from prefect_prime.arithmetic import (
    ENVIRONMENT,
    SYSTEM_PROMPT,
    Problem,
    answer_in,
    problems,
    reply,
)
from prefect_prime.flows.decorator import eval_flow
from prefect_prime.flows.sandbox import main
from prefect_prime.records import episode


@eval_flow(
    environments=[ENVIRONMENT],
    model="{model}",
    evaluation_name="arithmetic-{model}",
    framework="prefect-prime",
    tags=["demo"],
    flow_run_name="arithmetic-{model}-{examples}x{rollouts}",
)
def demo(
    model: str = "toy-solver",
    examples: PositiveInt = 100,
    rollouts: PositiveInt = 3,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Let a toy model solve arithmetic word problems.

    Args:
        model: Its name; each makes mistakes of its own.
        examples: How many problems.
        rollouts: How often each problem is tried.
        seed: What the problems follow from.
    """
    for problem in problems(examples, seed):
        for rollout in range(rollouts):
            yield attempt(model, problem, rollout)


def attempt(model: str, problem: Problem, rollout: int) -> dict[str, Any]:
    """One rollout as an episode: its reward is 1.0 if the answer is right."""
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": problem.question},
    ]
    rewards = metrics = error = None
    try:
        text = reply(model, problem, rollout)
    except ConnectionError as failure:
        error = failure
    else:
        messages.append({"role": "assistant", "content": text})
        given = answer_in(text)
        rewards = {"correct": float(given == problem.answer)}
        metrics = {"steps": len(problem.steps), "answered": float(given is not None)}
    return episode(
        messages,
        rewards=rewards,
        metrics=metrics,
        error=error,
        example_id=problem.idx,
        answer=str(problem.answer),
        task={"kind": problem.kind},
        environment=ENVIRONMENT,
        model=model,
    )


if __name__ == "__main__":
    sys.exit(main())
