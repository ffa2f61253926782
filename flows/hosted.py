"""``$EVALUATION_ID``: an evaluation that a launcher opened and handed to this process.

It belongs to the process's first outermost eval alone: others open their own, and so does one
that runs inside another. Nothing is created for it and its metadata stays the launcher's; a clean
finish is reported, any other end is the launcher's to see.
"""

import os
import threading

from prefect_prime.flows.options import EvalPlan
from prefect_prime.flows.run import surrounding_run

_VARIABLE = "EVALUATION_ID"
_lock = threading.Lock()
_claimed: set[str] = set()


def claim(plan: EvalPlan) -> EvalPlan:
    """The plan, attached to the handed evaluation if it is this run's to take."""
    handed = os.environ.get(_VARIABLE, "").strip()
    if not handed or plan.evaluation_id is not None or surrounding_run() is not None:
        return plan
    with _lock:
        if handed in _claimed:
            return plan
        _claimed.add(handed)
    return plan.attached_to(handed, hosted=True)
