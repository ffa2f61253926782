"""What a person decorates or deploys."""

from prefect_prime.flows.decorator import eval_flow
from prefect_prime.flows.result import EvalResult
from prefect_prime.flows.run import EvalRun, current_run
from prefect_prime.gates import Gate

__all__ = ["EvalResult", "EvalRun", "Gate", "current_run", "eval_flow"]
