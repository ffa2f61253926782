"""What a record's ``run.id`` is while the record lies in a spool: a placeholder.

It stands for the evaluation that the record will belong to, which may not be known yet and may
change, and for the producer's own run block, which the sample rows keep.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from prefect_prime import encoding, records
from prefect_prime.spool.ledger import Ledger

#: Hex digits of a producer's number in a placeholder: four billion producers.
_ORIGIN_DIGITS = 8
#: Producers that are looked for one by one; a typical run has one, a resumed one two.
_FEW_ORIGINS = 8


class Stamping:
    """The placeholders of one spool: a random token of its own, and a producer's number."""

    def __init__(self, ledger: Ledger) -> None:
        if (token := ledger.fact("token")) is None:
            token = secrets.token_hex(12)
            ledger.set_fact("token", token)
        self._ledger = ledger
        self._root = f"pp{token}".encode()
        self._placeholder = re.compile(self._root + rb"([0-9a-f]{%d})" % _ORIGIN_DIGITS)
        #: The latest producer, as its records have it, and its number.
        self._latest: tuple[bytes | None, int] = (None, 0)

    def stamp(self, mapping: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """An episode or a trace with a placeholder on it and on every member trace; and that
        placeholder.
        """
        producer = _producer(mapping)
        latest = self._latest  # another thread may set another one meanwhile
        if producer is None or latest[0] != producer:
            number = self._ledger.intern_origin(records.origin_of(mapping))
            latest = self._latest = (producer, number)
        placeholder = self._placeholder_of(latest[1])
        return records.stamp(mapping, placeholder), placeholder.encode()

    def _placeholder_of(self, origin: int) -> str:
        return f"{self._root.decode()}{origin:0{_ORIGIN_DIGITS}x}"

    def without_producer(self, line: bytes, placeholder: bytes | None) -> bytes:
        """A line as any producer would have it: a retry has another run id of its own. It has
        this placeholder, or, where None is given, any.
        """
        if placeholder is None:
            return self._placeholder.sub(self._root, line)
        return line.replace(placeholder, self._root) if placeholder else line

    def fill_in(self, pieces: Iterable[bytes], evaluation_id: str) -> Iterator[bytes]:
        """Pieces of whole lines, as records of an evaluation."""
        # Evaluation ids come from a service: whatever is in them stays inside the string.
        identity = orjson.dumps(evaluation_id)[1:-1]
        origins = self._ledger.origins()
        if origins > _FEW_ORIGINS:
            yield from (self._placeholder.sub(lambda _: identity, lines) for lines in pieces)
            return
        known = [self._placeholder_of(number).encode() for number in range(1, origins + 1)]
        for lines in pieces:
            filled = lines
            for placeholder in known:  # twenty times as fast as the pattern
                filled = filled.replace(placeholder, identity)
            yield filled

    def take_off(self, line: bytes) -> dict[str, Any]:
        """A line as its producer wrote it. Raises ``ValueError`` for another spool's."""
        record: dict[str, Any] = encoding.decode(line)
        found = self._placeholder.fullmatch(record["run"]["id"].encode())
        if found is None:
            raise ValueError("a line that is not of this spool")
        return records.restore(record, self._ledger.origin(int(found[1], 16)))


def _producer(mapping: Mapping[str, Any]) -> bytes | None:
    """The run blocks of a record as they are, the same bytes for the next of the same producer;
    None where that takes a closer look.
    """
    try:
        members = [member.get("run", 0) for member in mapping.get("traces", ())]
        return orjson.dumps((mapping.get("run", 0), members))
    except (TypeError, AttributeError):  # what is no JSON, or no mapping
        return None
