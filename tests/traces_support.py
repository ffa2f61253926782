"""Traces as a test uploads them to the embedded platform, and what it asks for them."""

from datetime import UTC, datetime

START = 1_796_000_000


def trace(name, number=0, **fields):
    return {
        "id": name,
        "timing": {"start": START + number, "agent": {"start": START, "end": START + number + 2}},
        **fields,
    }


def at(number):
    """The moment of ``trace(..., number)``, as the client sends it."""
    return datetime.fromtimestamp(START + number, UTC).isoformat()


def names(page):
    return [item.trace_id for item in page.items]
