"""Which ids a ledger may hold, in constant memory: most ids are new, and need no query.

A Bloom filter of one MiB. What it does not know was never added; of what is new, it takes
0.1 % for known among 100,000 ids and 5 % among a million, and the ledger is asked then.
"""

_BITS = 23


class Seen:
    """A set of texts that only grows, and sometimes holds one more than it was given."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (_BITS - 3))

    def add(self, text: str) -> None:
        """Take one in."""
        for bit in _places(text):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, text: str) -> bool:
        bits = self._bits
        return all(bits[bit >> 3] & 1 << (bit & 7) for bit in _places(text))


def _places(text: str) -> tuple[int, int]:
    digits = hash(text)  # Python keeps it in the text
    return digits & (1 << _BITS) - 1, digits >> _BITS & (1 << _BITS) - 1
