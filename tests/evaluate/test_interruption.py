"""A signal ends a coroutine once, in good order, and is then what it would have been."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from threading import Timer
from typing import Any

import pytest
from prefect.flow_engine import FlowRunTimeoutError

from prefect_prime.flows.interruption import run_interruptibly


class Told(BaseException):
    """What a handler raises."""


def tell(number: int, _frame: object) -> None:
    raise Told(number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, tell) for number in numbers}
    yield
    assert {number: signal.getsignal(number) for number in numbers} == dict.fromkeys(numbers, tell)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_its_value_is_returned() -> None:
    async def main() -> int:
        await asyncio.sleep(0)
        return 3

    assert run_interruptibly(main, None) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_break_the_cleaning_up(number: signal.Signals) -> None:
    done = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            done.append("cleaned up")

    with pytest.raises(Told, match=str(int(number))):
        run_interruptibly(main, None)

    assert done == ["cleaned up"]


def test_a_signal_is_no_error_of_a_task_that_catches_errors() -> None:
    """A rollout records whatever is raised in it; a background task loses it."""
    recorded: list[BaseException] = []

    async def rollout() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the point of it
            recorded.append(error)

    async def main() -> None:
        await asyncio.create_task(rollout())

    with pytest.raises(Told):
        run_interruptibly(main, None)

    assert recorded == []


def test_past_its_deadline_it_is_ended_with_a_time_out() -> None:
    async def main() -> None:
        await asyncio.sleep(60)

    with pytest.raises(FlowRunTimeoutError):
        run_interruptibly(main, time.monotonic() + 0.05)


def test_the_alarm_of_a_scorer_ends_nothing() -> None:
    """As math-verify limits the time of a comparison, in the main thread."""

    def too_late(_number: int, _frame: object) -> None:
        raise ValueError("too late")

    async def main() -> str:
        before = signal.signal(signal.SIGALRM, too_late)
        rest = signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            time.sleep(10)  # noqa: ASYNC251 - a scorer that is busy
        except ValueError as error:
            await asyncio.sleep(0.05)
            return str(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, *rest)
            signal.signal(signal.SIGALRM, before)
        return "in time"

    assert run_interruptibly(main, None) == "too late"


def test_an_error_of_its_own_is_raised() -> None:
    async def main() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        run_interruptibly(main, None)


def test_interrupted_in_a_notebook_it_cleans_up_too() -> None:
    done = []

    async def main() -> None:
        Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            done.append("cleaned up")

    async def notebook() -> Any:
        return run_interruptibly(main, None)

    loop = asyncio.new_event_loop()
    with pytest.raises(Told):
        loop.run_until_complete(notebook())
    loop.close()

    assert done == ["cleaned up"]
