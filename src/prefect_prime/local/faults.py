"""``Faults``: which requests to the embedded platform meet which fault.

They are for your own tests: a client that survives them loses nothing when the real
platform, or the network before it, has a bad day. ::

    with LocalPlatform(faults=Faults(seed=7)) as platform: ...          # some of everything
    faults = Faults({"POST /evaluations/{id}/samples": [None, "reset after"]})   # the second
    faults = Faults({"POST /traces": {"502 late 8": 0.1}, "*": {"429 retry-after=1": 0.02}})

A **route** is named as the API's pages name it, ``METHOD /path``, without the host and
``/api/v1``; what stands in braces does not matter. ``*`` stands for every method, and at
the end of a path for the rest: ``GET *``, ``* /traces*``; alone for everything. The first
name that fits a request decides. Pages meet no fault.

A **rule** says what the requests of a route meet, each route of a ``*`` for itself:

- rates: ``{"502 after": 0.1, "slow 2": 0.05}``, each the share of requests that meet it;
- a script: ``["reset after", None, "502 before"]``, for the first, second, third request;
  those after its end are served;
- one fault, for every request;
- a callable, which gets each ``Arrival`` and returns a fault or None. It runs on a thread
  of its own: it may wait, and be the gate of a slow platform.

The n-th request of a route meets the same fault in every run: it depends on the seed, the
route and n, never on the timing of other routes. A platform that takes no ``status`` is a
mode of its own (``LocalPlatform(status_updates="refuse")`` or ``"ignore"``), and combines.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self, TypeAlias

from prefect_prime.local.fault import Fault

#: What ``Faults(seed=...)`` does: one request in seven meets a fault, most of them within
#: what a client replays by itself. Long ones (``hang``, ``restart``) are for you to add.
DEFAULT_RATES: Mapping[str, float] = {
    "429 before": 0.01,
    "429 before retry-after=1": 0.01,
    "503 before retry-after=date+1": 0.01,
    "500 before": 0.01,
    "500 after": 0.01,
    "502 before": 0.01,
    "502 after": 0.01,
    "502 late 2": 0.01,
    "504 after": 0.01,
    "reset before": 0.01,
    "reset after": 0.01,
    "reset late 2": 0.005,
    "html before": 0.005,
    "truncated": 0.01,
    "slow 0.5": 0.01,
    "refuse 0.5": 0.005,
}

_PARAMETER = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True)
class Arrival:
    """A request that has come: ``count`` is 1 for the first of its ``route``."""

    method: str
    path: str
    route: str
    count: int


Rule: TypeAlias = (
    Mapping[str, float]
    | Sequence[str | Fault | None]
    | str
    | Fault
    | Callable[[Arrival], str | Fault | None]
)
_Decide: TypeAlias = Callable[[Arrival], Fault | None]


@dataclass(frozen=True)
class Faults:
    """Rules by route; see the module. ``ValueError`` for what is no fault, rate or route.

    ``processed`` is told of each request that the platform has processed, before its client
    hears of it; it may kill that client, or wait.
    """

    routes: Mapping[str, Rule] = field(default_factory=lambda: {"*": DEFAULT_RATES})
    seed: int = 0
    processed: Callable[[Arrival], None] | None = None
    _rules: tuple[tuple[re.Pattern[str], _Decide], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        rules = tuple((_pattern(name), self._rule(rule)) for name, rule in self.routes.items())
        object.__setattr__(self, "_rules", rules)

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Faults from one line: ``seed=7`` and ``ROUTE=FAULT@RATE,FAULT@RATE``, parted by ``;``.

        Without rates the faults of a route are a script, with ``none`` for a request that is
        served: ``seed=7; POST /traces=reset after,none,502 late 8; *=429@0.05``.
        """
        routes: dict[str, Rule] = {}
        seed = 0
        for item in filter(None, map(str.strip, spec.split(";"))):
            name, _, value = map(str.strip, item.partition("="))
            if name == "seed":
                seed = int(value)
            else:
                routes[name] = _parse_rule(item, value)
        return cls(routes, seed) if routes else cls(seed=seed)

    def check(self, known: Sequence[str]) -> None:
        """``ValueError`` if a name fits none of the ``known`` routes: it would never fire."""
        for name, (pattern, _) in zip(self.routes, self._rules, strict=True):
            if not any(pattern.fullmatch(_plain(route)) for route in known):
                raise ValueError(f"{name!r} is no route. The routes are: {', '.join(known)}.")

    def decide(self, arrival: Arrival) -> Fault | None:
        """The fault that this request meets; waits if a callable does."""
        route = _plain(arrival.route)
        for pattern, decide in self._rules:
            if pattern.fullmatch(route):
                return decide(arrival)
        return None

    def _rule(self, rule: Rule) -> _Decide:
        if isinstance(rule, (str, Fault)):
            always = _fault(rule)
            return lambda _arrival: always
        if isinstance(rule, Mapping):
            return self._rates(rule)
        if isinstance(rule, Sequence):
            script = [_fault(each) for each in rule]
            return lambda arrival: (
                script[arrival.count - 1] if arrival.count <= len(script) else None
            )
        return lambda arrival: _fault(rule(arrival))

    def _rates(self, rates: Mapping[str, float]) -> _Decide:
        faults = [Fault.parse(text) for text in rates]
        bounds = list(accumulate(rates.values()))
        if any(not 0 <= rate <= 1 for rate in rates.values()) or (bounds and bounds[-1] > 1 + 1e-9):
            raise ValueError(f"rates are from 0 to 1, and at most 1 together: {dict(rates)}")

        def decide(arrival: Arrival) -> Fault | None:
            # A generator of its own for every request: sharing one would make a fault depend
            # on which thread came first.
            source = random.Random(f"{self.seed}|{arrival.route}|{arrival.count}")  # noqa: S311
            drawn = source.random()
            return next((f for f, bound in zip(faults, bounds, strict=True) if drawn < bound), None)

        return decide


def _fault(given: str | Fault | None) -> Fault | None:
    return Fault.parse(given) if isinstance(given, str) else given


def _plain(route: str) -> str:
    return _PARAMETER.sub("{}", route)


def _pattern(name: str) -> re.Pattern[str]:
    method, _, path = _plain("* *" if name == "*" else name).partition(" ")
    if not path.startswith(("/", "*")):
        raise ValueError(f"{name!r} is no route: write it as 'POST /evaluations/' or '*'.")
    method = "[A-Z]+" if method == "*" else re.escape(method.upper())
    rest = ".*" if path.endswith("*") else ""
    return re.compile(f"{method} {re.escape(path.removesuffix('*'))}{rest}")


def _parse_rule(item: str, value: str) -> Rule:
    entries = [entry.strip() for entry in value.split(",")]
    rated = [entry.rpartition("@") for entry in entries]
    if all(at for _, at, _ in rated):
        return {text: float(rate) for text, _, rate in rated}
    if any(at for _, at, _ in rated):
        raise ValueError(f"{item!r}: give every fault of a route its @RATE, or none.")
    return [None if entry == "none" else entry for entry in entries]
