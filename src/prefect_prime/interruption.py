"""A coroutine that signals end in good order, from code that is not one itself.

Python runs a signal's handler wherever the main thread happens to be. What it raises there
ends whichever coroutine that is: a rollout then takes a time-out for an error of its own, and
a server's task swallows it. So for as long as the coroutine runs, a signal cancels it instead,
once; when everything in it has let go of what it holds, the handler is called after all.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Ctrl-C, the end that a worker asks for, and the alarm behind a sync flow's time-out.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def run_interruptibly(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end and return its value.

    Called where an event loop is running (in a notebook), it gets a thread of its own.
    """
    if threading.current_thread() is threading.main_thread() and not _loop_is_running():
        return _with_handlers(main)
    with ThreadPoolExecutor(1, "prime-eval") as pool:
        return pool.submit(copy_context().run, asyncio.run, main()).result()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _with_handlers(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    received: list[signal.Signals] = []

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: signal.Signals) -> None:
            if not received and task is not None:
                task.cancel()
            received.append(number)

        caught = [number for number, handler in handlers.items() if callable(handler)]
        for number in caught:
            loop.add_signal_handler(number, stop, number)
        try:
            return await main()
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
                signal.signal(number, handlers[number])

    try:
        return asyncio.run(guarded())
    finally:
        if received:  # the handler that was there before does what it does, which is to raise
            handler: Any = handlers[received[0]]
            handler(received[0], None)
