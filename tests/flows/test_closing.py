"""An evaluation is closed once, also when nobody can tell whether it was."""

from typing import Literal
from uuid import uuid4

import pytest
from faulty_proxy import Fault, FaultyProxy
from support import Evaluations

from prefect_prime.flows import current_run, eval_flow
from prefect_prime.local import LocalPlatform
from prefect_prime.records import episode

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.mark.parametrize("kind", ["502 after", "502 before", "reset after", "reset before"])
@pytest.mark.parametrize("call", ["finalize", "status"])
def test_a_close_whose_answer_is_lost_is_neither_repeated_nor_missing(
    platform: LocalPlatform,
    evaluations: Evaluations,
    monkeypatch: pytest.MonkeyPatch,
    kind: Fault,
    call: Literal["finalize", "status"],
) -> None:
    monkeypatch.setattr("prefect_prime.creation.SETTLE_TIME", 0.2)
    name = f"closing-{uuid4().hex[:8]}"
    faults: list[Fault] = [kind]

    def decide(method: str, path: str) -> Fault | None:
        finalize = path.endswith("/finalize")
        hit = finalize if call == "finalize" else method == "PUT"
        return faults.pop() if hit and faults else None

    with FaultyProxy(platform, decide) as proxy:

        @eval_flow(environments=["toy"], evaluation_name=name, credentials=proxy.credentials)
        def entrypoint() -> None:
            current_run().log_episodes([episode(rewards=1.0, example_id=1)])
            if call == "status":
                raise RuntimeError("the model is gone")

        entrypoint(return_state=True)

    assert faults == []
    (evaluation,) = evaluations.named(name)
    assert evaluation["status"] == ("COMPLETED" if call == "finalize" else "FAILED")
    finalized = [
        request
        for request in platform.requests
        if request.path.endswith(f"{evaluation['id']}/finalize")
    ]
    assert len(finalized) == (call == "finalize")
