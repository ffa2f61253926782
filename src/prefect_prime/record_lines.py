r"""Saved records read back from a JSONL file, whatever else is in it.

The file is read line by line in binary, so memory holds one line, and a line ends at
``\n`` alone: U+2028 and its like are text. CRLF, blank lines, a byte order mark and a
missing final newline are no problem. ``NaN`` and the infinities, which Python's json
writes, are read as such; the encoding turns them into null later.

A line that is no record is told with its number and the reason, and costs no other line.
Where a producer appended to a torn line, or to one without its newline, the line holds
more than it should: every whole record in it is kept.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from prefect_prime.encoding import decode
from prefect_prime.errors import RecordRejectedError
from prefect_prime.records import Kind, kind_of, record_id

#: ``blank``: nothing in it. ``torn``: the beginning of an object, and not its end.
#: ``foreign``: anything else that is no record, JSON or not.
Flaw = Literal["blank", "torn", "foreign"]

#: No request holds more than 256 MiB, so no sink takes a longer line, nor a part of it.
MAX_LINE_BYTES = 256 * 1024 * 1024

_SPACE = " \t\r\n"
#: Takes NaN and the infinities, and control characters inside strings.
_LENIENT = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Line:
    """One line, ``number`` counted from 1: its records, and what is wrong with it, if anything."""

    number: int
    records: tuple[dict[str, Any], ...] = ()
    flaw: Flaw | None = None
    reason: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Every line of a file. Raises OSError where it cannot be read."""
    number = 0
    kind: Kind = "episode"
    with path.open("rb") as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                _skip_line(file)
                size = f"over {MAX_LINE_BYTES // 1024**2} MiB long"
                yield Line(number, flaw="foreign", reason=size)
                continue
            line = _read(number, raw, kind)
            if line.records:
                kind = kind_of(line.records[-1])
            yield line


def _skip_line(file: IO[bytes]) -> None:
    while (part := file.readline(MAX_LINE_BYTES)) and not part.endswith(b"\n"):
        pass


def _read(number: int, raw: bytes, kind: Kind) -> Line:
    content = raw.removeprefix(codecs.BOM_UTF8).strip(_SPACE.encode())
    if not content:
        return Line(number, flaw="blank", reason="blank")
    try:
        values = [decode(content)]
    except (ValueError, RecursionError):
        return _read_broken(number, content.decode(errors="replace"), kind)
    return _judged(number, values)


def _judged(number: int, values: list[Any]) -> Line:
    records: list[dict[str, Any]] = []
    reason = ""
    for value in values:
        if refusal := _why_no_record(value):
            reason = reason or refusal
        else:
            records.append(value)
    return Line(number, tuple(records), flaw="foreign" if reason else None, reason=reason)


def _why_no_record(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"JSON, but {type(value).__name__} where a record is an object"
    kind = kind_of(value)
    if kind == "trace" and not isinstance(value.get("nodes"), list):
        return "an object that is no record: it has neither traces, nor nodes, nor sample_id"
    try:
        record_id(value, kind)
    except RecordRejectedError as error:
        return str(error)
    traces = value["traces"] if kind == "episode" else []
    if not (isinstance(traces, list) and all(isinstance(trace, dict) for trace in traces)):
        return "an episode whose traces are no list of objects"
    return None


def _read_broken(number: int, text: str, kind: Kind) -> Line:
    """A line that is not one strict JSON value: lenient JSON, several values, or torn."""
    values, end, problem = _from_the_left(text)
    line = _judged(number, values)
    if end == len(text):
        return line
    after = _from_the_right(text, end, kind)
    if not text.startswith("{", end):
        return Line(number, (*line.records, *after), "foreign", problem)
    reason = f"it ends inside an object ({problem})"
    if after:
        reason = "an object breaks off in it; the whole record appended to that is kept"
    return Line(number, (*line.records, *after), "torn", reason)


def _from_the_left(text: str) -> tuple[list[Any], int, str]:
    """The whole values at the start, where they end, and what is wrong from there on."""
    values: list[Any] = []
    end = 0
    while end < len(text):
        try:
            value, end = _LENIENT.raw_decode(text, end)
        except json.JSONDecodeError as error:
            what = error.msg.removesuffix(" at")
            return values, end, f"not JSON: {what} at character {error.pos + 1}"
        except ValueError as error:
            return values, end, f"not JSON: {error}"
        except RecursionError:
            return values, end, "not JSON that can be read: nested too deeply"
        values.append(value)
        while end < len(text) and text[end] in _SPACE:
            end += 1
    return values, end, ""


def _from_the_right(text: str, start: int, kind: Kind) -> list[dict[str, Any]]:
    """The record that ends where the text does, if it is of the kind the file holds.

    From the right, because each object inside it ends early and costs its own length
    alone. The kind keeps an object of a torn record from being taken for a record.
    """
    at = len(text)
    while (at := text.rfind("{", start + 1, at)) > start:
        try:
            value, end = _LENIENT.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if end == len(text):
            whole = _why_no_record(value) is None and kind_of(value) == kind
            return [value] if whole else []
    return []
