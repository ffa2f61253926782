"""A coroutine that signals end in good order, from a flow that is not one itself.

Python runs a signal's handler wherever the main thread happens to be. What it raises there
ends whichever coroutine that is: a rollout takes it for an error of its own, and a background
task loses it. So for as long as the coroutine runs, a signal cancels it instead, once; when
everything in it has let go of what it holds, the handler is called after all.

The alarm behind a flow's time-out is left alone: scorers use it as well. Give a deadline.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Final, TypeVar

from prefect.flow_engine import FlowRunTimeoutError
from prefect.utilities import engine

T = TypeVar("T")

#: Ctrl-C, and the end that a worker asks for.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: The name of Prefect's own handler of SIGTERM.
_BRIDGE: Final = "_prefect_sigterm_handler"


def run_interruptibly(main: Callable[[], Coroutine[Any, Any, T]], deadline: float | None) -> T:
    """Run a coroutine to its end and return its value; ``FlowRunTimeoutError`` past the
    deadline, which Prefect takes for its own.

    ``deadline`` is a time of ``time.monotonic``. Called where an event loop is running (in a
    notebook), the coroutine gets a thread of its own.
    """

    async def limited() -> T:
        try:
            async with asyncio.timeout_at(deadline) as limit:
                return await main()
        except TimeoutError:
            if limit.expired():  # and no other's
                raise FlowRunTimeoutError from None
            raise

    if threading.current_thread() is threading.main_thread() and not _loop_is_running():
        return _with_handlers(limited)
    return _in_a_thread(limited)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def noted() -> T:
        begun.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    with ThreadPoolExecutor(1, "prime-eval") as pool:
        running = pool.submit(copy_context().run, asyncio.run, noted())
        try:
            return running.result()
        except BaseException:  # Ctrl-C comes to this thread, which then waits for the other
            for loop, task in begun:
                if task is not None and not loop.is_closed():
                    loop.call_soon_threadsafe(task.cancel)
            raise


def _with_handlers(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    received: list[signal.Signals] = []
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    async def guarded() -> T:
        task = asyncio.current_task()

        def stop(number: signal.Signals) -> None:
            if not received and task is not None:
                task.cancel()
            received.append(number)

        with _caught(handlers, stop):
            return await main()

    try:
        return asyncio.run(guarded())
    finally:
        if received:  # the handler that was there before does what it does, which is to raise
            handler: Any = handlers[received[0]]
            handler(received[0], None)


@contextmanager
def _caught(
    handlers: dict[signal.Signals, Any], stop: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Have the event loop take the signals that somebody handles."""
    loop = asyncio.get_running_loop()
    bridge = getattr(engine, _BRIDGE, None)
    taken = [number for number, handler in handlers.items() if callable(handler)]
    for number in taken:
        loop.add_signal_handler(number, stop, number)
    bridged = bridge is not None and handlers[signal.SIGTERM] is bridge
    if bridged:
        # Prefect 3.9.1: a runner's cancellation is taken for one only while Prefect's handler is
        # in place, and for a crash else. What is there now calls that handler in the end.
        setattr(engine, _BRIDGE, signal.getsignal(signal.SIGTERM))
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
            signal.signal(number, handlers[number])
        if bridged:
            setattr(engine, _BRIDGE, bridge)
