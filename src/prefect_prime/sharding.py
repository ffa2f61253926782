"""Dividing an eval's work: by example, so that all rollouts of one are made in one place.

Only there can they be numbered, and only there is it known which of them are left to do.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeVar

from prefect_prime.encoding import encode
from prefect_prime.errors import ConfigurationError

T = TypeVar("T")


def share(items: Iterable[T], *, shard: int, shards: int, key: Callable[[T], Any]) -> list[T]:
    """The items of one shard, in their order; ``key`` gives the id of an item's example.

    Shards are counted from 0. Which one an example is in depends on its id and on ``shards``
    alone: not on the process, nor on what other items there are. Shards are about, not
    exactly, equally large. Raises ``ConfigurationError`` for a shard that there is not.
    """
    if not 0 <= shard < shards:
        raise ConfigurationError(f"there is no shard {shard} of {shards}: they are counted from 0")
    return [item for item in items if _bucket(key(item), shards) == shard]


def _bucket(example: Any, shards: int) -> int:
    digest = blake2b(encode({"id": example}), digest_size=8).digest()
    return int.from_bytes(digest) % shards
