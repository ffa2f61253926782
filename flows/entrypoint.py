"""The user's function, surrounded: the four forms an entrypoint may have.

Each wrapper is a plain or a coroutine function with the user's own signature, so that
Prefect sees one of its usual flows. A generator is iterated in here: as a generator flow it
would count as Completed when it is closed early, and yield everything again on a retry.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from prefect_prime.flows.attempt import begin


def tracked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the flow runs in place of ``fn``."""
    is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    wrapper = (_async_wrapper if is_async else _wrapper)(fn)
    # Annotations as objects: under `from __future__ import annotations` they are strings, which
    # nobody could resolve from this module.
    wrapper.__signature__ = _signature(fn)  # type: ignore[attr-defined]  # read by inspect
    return wrapper


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(fn, eval_str=True)
    except (NameError, TypeError):  # a name that exists for type checkers only
        return inspect.signature(fn)


def _async_wrapper(fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(fn):

        @functools.wraps(fn)
        async def async_generator(*args: Any, **kwargs: Any) -> Any:
            with await asyncio.to_thread(begin, async_generator) as attempt:
                with attempt.calling():
                    if not attempt.returned:
                        async for yielded in fn(*args, **kwargs):
                            attempt.log(yielded)
                return await asyncio.to_thread(attempt.finish, None)

        return async_generator

    @functools.wraps(fn)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with await asyncio.to_thread(begin, coroutine) as attempt:
            with attempt.calling():
                value = None if attempt.returned else await fn(*args, **kwargs)
            return await asyncio.to_thread(attempt.finish, value)

    return coroutine


def _wrapper(fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(fn):

        @functools.wraps(fn)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with begin(generator) as attempt:
                with attempt.calling():
                    if not attempt.returned:
                        for yielded in fn(*args, **kwargs):
                            attempt.log(yielded)
                return attempt.finish(None)

        return generator

    @functools.wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        with begin(function) as attempt:
            with attempt.calling():
                value = None if attempt.returned else fn(*args, **kwargs)
            return attempt.finish(value)

    return function
