"""``reconcile``: no evaluation is left open, whatever became of its process.

State hooks are the fast path, this is the guarantee. Deploy it on a schedule, once per spool
store: it may run every few minutes, and twice at once. It touches evaluations of this Prefect
server only, and never a living one, or one that somebody else opened.

``python -m prefect_prime.flows.reconcile`` does the same once, from a shell.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from prefect_prime.errors import PrefectPrimeError
from prefect_prime.flows.abandoned import WAITS, close_abandoned
from prefect_prime.flows.accounts import Accounts
from prefect_prime.flows.sweep import Finding, Sweep
from prefect_prime.settings import load_settings


@flow(name="reconcile", log_prints=False)
def reconcile(
    credentials: str | list[str] | None = None,
    orphaned_after: float = 300.0,
    undelivered_after: float = 86_400.0,
    drain_timeout: float = 300.0,
) -> list[dict[str, str | None]]:
    """Send what is left in this machine's spools, and close every evaluation that is over.

    Args:
        credentials: A Prime Credentials block, or several for several platforms; by default
            what the environment says.
        orphaned_after: Seconds without a sign of life after which a run that Prefect still
            shows as running counts as dead, if nobody holds its spool.
        undelivered_after: Seconds after its flow run's end at which an evaluation is closed
            whose records lie in a spool that this machine does not see.
        drain_timeout: Seconds that one spool's uploads may take; the rest is for the next time.
    """
    log = get_run_logger()
    settings = load_settings()
    accounts = Accounts.load(credentials, settings)
    sweep = Sweep(
        settings,
        accounts,
        log,
        orphaned_after=orphaned_after,
        drain_timeout=drain_timeout,
        offline=True,
    )
    found = sweep.run()
    for account in accounts:
        try:
            found += close_abandoned(account, settings, undelivered_after=undelivered_after)
        except Exception as error:  # noqa: BLE001 - one platform's trouble is not another's
            note = f"{type(error).__name__}: {error}"
            found.append(Finding(account.origin, None, "", None, note))
    for finding in found:
        log.info("%s", _line(finding))
    rows = [asdict(finding) for finding in found]
    create_table_artifact(
        rows or [{"note": "nothing to do"}], key="prime-reconcile", description="What was left"
    )
    return rows


def _line(finding: Finding) -> str:
    what = f"{finding.name or finding.flow_run_id}: {finding.status or 'left open'}"
    return f"{what} ({finding.note})" if finding.note else what


def main(arguments: Sequence[str] | None = None) -> int:
    """Reconcile once; returns the exit status: 0 if nothing was left open that was ours to do."""
    parser = argparse.ArgumentParser(
        prog="python -m prefect_prime.flows.reconcile",
        description="Send what is left in this machine's spools, and close what is over.",
    )
    parser.add_argument(
        "--credentials",
        metavar="BLOCK",
        action="append",
        help="a Prime Credentials block; may be repeated (default: the environment)",
    )
    parser.add_argument("--orphaned-after", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--undelivered-after", type=float, default=86_400.0, metavar="SECONDS")
    parser.add_argument("--drain-timeout", type=float, default=300.0, metavar="SECONDS")
    try:
        found = reconcile(**vars(parser.parse_args(arguments)))
    except PrefectPrimeError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    for row in found:
        print(_line(Finding(**row)))  # noqa: T201 - a command
    left = [row for row in found if row["status"] is None and row["note"] != WAITS]
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
