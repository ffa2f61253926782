"""What an eval needs, looked at one by one: its settings, both services, Prefect, its spool.

Only reads are sent to anybody, and nothing is left on the disk. Each look is a ``Check``; one
that failed says what to do.
"""

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.context import get_settings_context
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.access import TIMEOUT, Check, account
from prefect_prime.flows.evaluation_facts import peek
from prefect_prime.settings import config_file_problem, load_settings, source_of
from prefect_prime.spool import Ledger, store
from prefect_prime.spool.lease import Lease

#: Bytes that an eval's records should find on the disk: a night of an outage, say.
MIN_FREE = 1024**3
_GIB = 1024**3

_UNFINISHED = "with records to send or an evaluation to close"
_UNREADABLE = "that cannot be read"


def checks(block: str | None) -> Iterator[Check]:
    """Everything, in the order in which one thing needs another.

    ``block`` names a Prime Credentials block; None is what the environment says.
    """
    impatient = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: TIMEOUT}
    with temporary_settings(impatient):
        prefect = _prefect()
        yield prefect
        if (problem := config_file_problem()) is not None:
            yield Check("Config file", "note", problem, "Mend it, or remove it.")
        try:
            settings = load_settings()
        except ConfigurationError as error:
            yield Check("Settings", "bad", str(error), "Correct it; an eval would fail with this.")
            return
        if settings.mode != "online":
            effect = "nothing is tracked" if settings.mode == "disabled" else "nothing is sent"
            text = f"{settings.mode} ({source_of('mode')}): {effect}"
            yield Check("Mode", "note", text, "Unset PRIME_RUNS_MODE to track the eval.")
        yield from account(block, settings, prefect_answers=prefect.mark != "bad")
        yield from _spool(settings.spool_dir)


# -- Prefect -----------------------------------------------------------------------------


def _prefect() -> Check:
    profile = f"profile {get_settings_context().profile.name!r}"
    url = PREFECT_API_URL.value()
    if not url:
        if not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
            text = f"no PREFECT_API_URL ({profile})"
            return Check("Prefect API", "bad", text, "Set it to the address of your server.")
        return Check(
            "Prefect API",
            "note",
            f"no PREFECT_API_URL ({profile}): each process starts a server of its own",
            "For workers, schedules and the UI: `prefect server start`, and set PREFECT_API_URL.",
        )
    place = f"{_without_user(url)} ({profile})"
    try:
        with get_client(sync_client=True) as client:
            client.read_flow_runs(limit=1)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        return Check(
            "Prefect API",
            "bad",
            f"{place} answered {status}",
            "Check PREFECT_API_KEY or PREFECT_API_AUTH_STRING."
            if status in {401, 403}
            else "Check PREFECT_API_URL: it ends in /api, or names a Prefect Cloud workspace.",
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what an eval would meet
        return Check(
            "Prefect API",
            "bad",
            f"{place} cannot be used ({type(error).__name__}: {error})",
            "Start it (`prefect server start`), or correct PREFECT_API_URL.",
        )
    return Check("Prefect API", "good", place)


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


# -- the spool --------------------------------------------------------------------------------


def _spool(root: Path) -> Iterator[Check]:
    place = f"{root} ({source_of('spool_dir')})"
    try:
        ground = next(each for each in (root, *root.parents) if each.exists())
        _try_out(ground)
        free = shutil.disk_usage(ground).free
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "Set PREFECT_PRIME_SPOOL_DIR to a local folder that this user may write."
        yield Check("Spool", "bad", f"{place} cannot be used: {reason}", advice)
        return
    yield Check("Spool", "good", f"{place} is writable")
    yield Check(
        "Disk space",
        "good" if free >= MIN_FREE else "bad",
        f"{free / _GIB:.1f} GiB free",
        ""
        if free >= MIN_FREE
        else f"Make room, {MIN_FREE / _GIB:.0f} GiB at least, or set PREFECT_PRIME_SPOOL_DIR"
        " elsewhere: records wait there while a service is away.",
    )
    yield _left_over(root)


def _try_out(ground: Path) -> None:
    """Do with a folder there what a spool does with its own."""
    with tempfile.TemporaryDirectory(prefix=".prefect-prime-check-", dir=ground) as made:
        lease = Lease.take(Path(made))
        ledger = Ledger(Path(made) / "ledger.sqlite3")
        ledger.set_fact("check", value=True)
        ledger.close()
        if lease is not None:
            lease.release()


def _left_over(root: Path) -> Check:
    counts = Counter(_condition(folder) for _, folder in store.spools(root))
    text = ", ".join(f"{counts[what]} {what}" for what in sorted(counts)) or "no spools"
    if counts[_UNFINISHED]:
        advice = "Send what they hold, and close: python -m prefect_prime.flows.reconcile"
        return Check("Left over", "note", text, advice)
    if counts[_UNREADABLE]:
        return Check("Left over", "note", text, f"Look at the folders in {root}.")
    return Check("Left over", "good", text)


def _condition(folder: Path) -> str:
    try:
        seen = peek(folder)
    except (OSError, sqlite3.Error, ValueError):
        return _UNREADABLE
    if seen is None:
        return "in use"
    left_open = seen.closed is None and seen.plan.evaluation_id is None
    return _UNFINISHED if seen.unfinished or left_open else "over"
