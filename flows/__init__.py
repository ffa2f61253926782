"""What a person decorates or deploys."""

from prefect_prime.flows.decorator import eval_flow
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.run import EvalRun, current_run

__all__ = ["EvalResult", "EvalRun", "current_run", "eval_flow"]
