"""The records that are sent: real ones of verifiers, in the sizes that evals have.

A record of a given size is a real episode with more turns, whose texts are filled up with
words. There are a few variants of each, further apart than a compressor looks back, and every
record of a workload has ids of its own; making one costs microseconds.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson

REAL_RUN = Path(__file__).parents[1] / "tests" / "data" / "verifiers-runs" / "clean"

#: By name: bytes of JSON, and messages in the conversation.
SIZES = {"7.6 KB": (7_600, 6), "57 KB": (57_000, 40), "1 MB": (1_000_000, 100)}
#: What a person makes by hand with ``prefect_prime.records.episode``.
SMALL = "small"
#: The real episodes as they are, as verifiers' own objects.
OBJECTS = "Episode objects"

_VARIANTS = 16
#: Messages where no tool was called: what a system, a user and a model said.
_PLAIN = 3
_WORDS = 2_000
#: Rollouts of each example.
_ROLLOUTS = 4


def real_episodes() -> list[dict[str, Any]]:
    """The episodes of a real run."""
    return [orjson.loads(line) for line in (REAL_RUN / "traces.jsonl").read_bytes().splitlines()]


def size_of(workload: str) -> int:
    """Bytes of JSON of one record, or their mean."""
    sizes = [len(orjson.dumps(record)) for record in _variants(workload)]
    return sum(sizes) // len(sizes)


def records(workload: str, number: int) -> Iterator[Any]:
    """So many records, each different; ready to be made while they are asked for."""
    if workload == OBJECTS:
        return islice(_objects(), number)
    ids = random.Random(number)
    variants = cycle(_variants(workload))
    return (_named(next(variants), position, ids) for position in range(number))


@cache
def _variants(workload: str) -> list[dict[str, Any]]:
    if workload == OBJECTS:
        return real_episodes()
    if workload == SMALL:
        from prefect_prime.records import episode

        asked = {"role": "user", "content": "What is 2 + 2?"}
        return [episode([asked, {"role": "assistant", "content": "4"}], rewards=1.0)]
    size, messages = SIZES[workload]
    real = [each for each in real_episodes() if len(each["traces"][0]["nodes"]) == _PLAIN]
    return [
        _filled(real[number % len(real)], size, messages, random.Random(number))
        for number in range(_VARIANTS)
    ]


def _filled(
    real: dict[str, Any], size: int, messages: int, chance: random.Random
) -> dict[str, Any]:
    """An episode of exactly this size, with so many messages."""
    episode: dict[str, Any] = orjson.loads(orjson.dumps(real))
    nodes = episode["traces"][0]["nodes"]
    asked, replied = nodes[1], nodes[2]
    while len(nodes) < messages:
        node = orjson.loads(orjson.dumps(replied if len(nodes) % 2 == 0 else asked))
        nodes.append({**node, "parent": len(nodes) - 1})
    room = size - len(orjson.dumps(episode))
    text = _prose(room, chance)
    share = room // len(nodes)
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        node["message"]["content"] += text[number * share : None if last else (number + 1) * share]
    assert len(orjson.dumps(episode)) == size
    return episode


def _prose(length: int, chance: random.Random) -> str:
    """Words as often as in a language: the n-th comes an n-th as often as the first.

    That is what a compressor works on, and levels differ in: it finds matches, of all lengths.
    """
    letters = "etaoinshrdlucmfwypvbgk"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(_WORDS)]
    weights = [1 / rank for rank in range(1, _WORDS + 1)]
    return " ".join(chance.choices(vocabulary, weights, k=length // 3 + 1))[:length]


def _named(variant: dict[str, Any], position: int, ids: random.Random) -> dict[str, Any]:
    """A record with ids of its own; everything that is the same is shared."""
    example = {"idx": position // _ROLLOUTS}
    task = {**variant["task"], "data": {**variant["task"]["data"], **example}}
    trace = {**variant["traces"][0], "id": _new_id(ids), "task": task}
    return {**variant, "id": _new_id(ids), "task": task, "traces": [trace]}


def _objects() -> Iterator[Any]:
    from verifiers.v1.episode import WireEpisode  # takes seconds

    real = [WireEpisode.model_validate(each) for each in real_episodes()]
    ids = random.Random(0)
    return (_named_object(episode, ids) for episode in cycle(real))


def _named_object(episode: Any, ids: random.Random) -> Any:
    traces = [each.model_copy(update={"id": _new_id(ids)}) for each in episode.traces]
    return episode.model_copy(update={"id": _new_id(ids), "traces": traces})


def _new_id(ids: random.Random) -> str:
    return f"{ids.getrandbits(128):032x}"
