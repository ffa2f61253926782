"""A small task set and a model to try on it: arithmetic word problems and ``toy-solver``.

Everything follows from the seed: the same problems, the same replies, the same mistakes.
Nothing leaves this process.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add, mul, sub

ENVIRONMENT = "arithmetic-word-problems"
SYSTEM_PROMPT = "Work the problem out step by step. End with a line 'Answer: <number>'."

#: How often the toy solver gets a step wrong.
_SLIP = 0.15
#: Seconds that a reply takes: with a model that answers at once, the eval would be over
#: before anybody saw it run.
_REPLY_SECONDS = 0.01
#: The one rollout, of the third problem, that gets no reply: a part of every real eval.
_UNANSWERED = (2, 0)

_OPERATORS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}
_ANSWER = re.compile(r"^Answer: (-?\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """One example: a question, and the chain of calculations that answers it."""

    idx: int
    kind: str
    question: str
    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def answer(self) -> int:
        """The right answer."""
        value = self.start
        for operator, operand in self.steps:
            value = _OPERATORS[operator](value, operand)
        return value


def problems(count: int, seed: int) -> Iterator[Problem]:
    """The first ``count`` problems of a seed."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    kinds = (_apples, _train, _tickets, _baker)
    for idx in range(count):
        yield kinds[idx % len(kinds)](idx, chance)


def _apples(idx: int, chance: random.Random) -> Problem:
    has, buys = chance.randint(12, 90), chance.randint(5, 60)
    question = f"Ada has {has} apples and buys {buys} more. How many apples does she have?"
    return Problem(idx, "apples", question, has, (("+", buys),))


def _train(idx: int, chance: random.Random) -> Problem:
    hours, speed, walk = chance.randint(2, 7), chance.randint(40, 120), chance.randint(2, 9)
    question = (
        f"A train runs {hours} hours at {speed} km/h; from its last stop it is {walk} km on foot."
        " How many kilometres is that altogether?"
    )
    return Problem(idx, "train", question, hours, (("*", speed), ("+", walk)))


def _tickets(idx: int, chance: random.Random) -> Problem:
    people, price, off = chance.randint(8, 30), chance.randint(6, 19), chance.randint(5, 40)
    question = (
        f"{people} friends buy tickets at {price} euros each, and get {off} euros off the whole."
        " How much do they pay?"
    )
    return Problem(idx, "tickets", question, people, (("*", price), ("-", off)))


def _baker(idx: int, chance: random.Random) -> Problem:
    trays, each, eaten = chance.randint(3, 9), chance.randint(12, 30), chance.randint(2, 11)
    price = chance.randint(2, 5)
    question = (
        f"A baker bakes {trays} trays of {each} rolls. {eaten} are eaten, the others are sold at"
        f" {price} euros each. How many euros does she earn?"
    )
    return Problem(idx, "baker", question, trays, (("*", each), ("-", eaten), ("*", price)))


def reply(model: str, problem: Problem, rollout: int) -> str:
    """What a toy model says; each model name makes mistakes of its own, and carries them on.

    Raises ConnectionError for one rollout of every eval.
    """
    time.sleep(_REPLY_SECONDS)
    if (problem.idx, rollout) == _UNANSWERED:
        raise ConnectionError("the endpoint closed the connection without a reply")
    chance = random.Random(f"{model}:{problem.question}:{rollout}")  # noqa: S311 - as above
    value = problem.start
    lines = []
    for operator, operand in problem.steps:
        before, value = value, _OPERATORS[operator](value, operand)
        if chance.random() < _SLIP:
            value += chance.choice((-10, -1, 1, 10))
        lines.append(f"{before} {operator} {operand} = {value}")
    return "\n".join([*lines, f"Answer: {value}"])


def answer_in(text: str) -> int | None:
    """The number that a reply gives as its answer; None where it gives none."""
    found = _ANSWER.search(text)
    return None if found is None else int(found[1])
