"""The processes that the kill harness kills: run as a command, it forks one per order.

Importing Prefect takes seconds, so it is done once here, before there is any thread, and each
order gets a fork: an eval (one attempt of a given flow run) or a reconcile. Orders come as
JSON lines on stdin; each is answered with the process's id, then with its exit status.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from prefect_prime import creation
from prefect_prime.flows import current_run, eval_flow
from prefect_prime.flows.reconcile import reconcile

#: Seconds; the proxy's lost answers are processed within milliseconds.
SETTLE_TIME = 0.5


@eval_flow(environments=["toy"], evaluation_name="{name}")
def killed_eval(name: str, folder: str, pace: float) -> None:  # noqa: ARG001 - the template's
    """Log every record of a file, and note in a journal each one whose call has returned."""
    run = current_run()
    records = json.loads((Path(folder) / "records.json").read_bytes())
    journal = os.open(Path(folder) / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for record in run.remaining(records, key=lambda each: each["traces"][0]["task"]["data"]["idx"]):
        run.log_episodes([record])
        os.write(journal, f"{record['id']}\n".encode())
        time.sleep(pace)
    os.close(journal)


def obey(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()
    creation.SETTLE_TIME = SETTLE_TIME
    os.environ.update(order["env"])
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        if order["do"] == "reconcile":
            reconcile(orphaned_after=order["orphaned_after"], drain_timeout=20.0)
        else:
            with get_client(sync_client=True) as client:
                flow_run = client.read_flow_run(UUID(order["flow_run"]))
            run_flow(killed_eval, flow_run, flow_run.parameters)


def say(answer: object) -> None:
    print(answer, flush=True)  # noqa: T201 - whoever gives the orders reads it


def main() -> None:
    say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                obey(json.loads(line))
                status = 0
            except BaseException:  # noqa: BLE001 - this process is no fork of its caller's loop
                traceback.print_exc()
            finally:
                os._exit(status)  # Prefect's own exit waits seconds for its events
        say(pid)
        _, status = os.waitpid(pid, 0)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
