"""What all runs of one Prefect server may send at once, or how often, where somebody has said so.

That is Prefect's global concurrency limit ``prime-uploads``: with a slot decay it is a rate, else
a number of uploads at once. Whether there is one is asked for at most once a minute.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency, rate_limit
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

NAME = "prime-uploads"
#: Seconds that an answer is good for.
_KNOWN_FOR = 60.0
#: Seconds that a slot is waited for before it is looked whether the run still wants it.
_PATIENCE = 5.0

#: By Prefect server: whether a slot is taken, and from whom; and until when that is known.
_known: dict[str | None, tuple[float, str | None]] = {}
_lock = threading.Lock()


@contextmanager
def upload_slot(stopping: Callable[[], bool]) -> Iterator[bool]:
    """Hold a slot while the code inside sends something; False where ``stopping`` came first.

    Where there is no such limit, or Prefect does not say, there is no waiting.
    """
    with ExitStack() as held:
        while True:
            if stopping():
                yield False
                return
            try:
                _take(held)
            except TimeoutError:
                continue
            except Exception:  # noqa: BLE001 - the limit is a courtesy to the platform: nothing waits for Prefect
                _forget()
            break
        yield True


def _take(held: ExitStack) -> None:
    kind = _kind()
    if kind == "rate":
        rate_limit(NAME, timeout_seconds=_PATIENCE)
    elif kind == "slots":
        slot = concurrency(NAME, timeout_seconds=_PATIENCE)
        slot.__enter__()
        held.callback(_give_back, slot)


def _give_back(slot: AbstractContextManager[None]) -> None:
    try:
        slot.__exit__(None, None, None)
    except Exception:  # noqa: BLE001 - what was sent is sent; the slot's lease runs out by itself
        _forget()


def _kind() -> str | None:
    server = PREFECT_API_URL.value()
    with _lock:  # held while asking: the others want to know the same
        until, kind = _known.get(server, (0.0, None))
        if time.monotonic() >= until:
            kind = _ask()
            _known[server] = time.monotonic() + _KNOWN_FOR, kind
    return kind


def _ask() -> str | None:
    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(NAME)
    except ObjectNotFound:
        return None
    if not limit.active:
        return None
    return "rate" if limit.slot_decay_per_second else "slots"


def _forget() -> None:
    """Prefect did not answer: do without it for as long as an answer is good."""
    with _lock:
        _known[PREFECT_API_URL.value()] = time.monotonic() + _KNOWN_FOR, None
