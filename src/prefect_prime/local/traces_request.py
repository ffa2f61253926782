"""From the bytes of ``POST /traces`` to the lines it carries: multipart, gzip, digest.

Pure functions over bytes: each returns what it read or raises the documented rejection,
always the same for the same bytes. Decompression stops at the limit, so a gzip bomb
costs at most the limit, never what it claims to hold; and what a client writes once, it
may not write a million times: parts, and members of one gzip.
"""

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from prime_traces import ErrorCode, LineFormat
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from prefect_prime.local.rules import Limits
from prefect_prime.local.wire import TracesError, rejected

#: The version of the lines' schema that this platform reads.
SUPPORTED_SCHEMA_VERSION = 1
#: zlib's window bits for "a gzip member, nothing else".
_GZIP_WINDOW = 31

#: Parts of one request: a client sends two.
_MAX_PARTS = 16
#: Members of one gzip: a client sends one, and each costs a copy of what follows it.
_MAX_MEMBERS = 100

_IDEMPOTENCY_KEY = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class TracesRequest:
    """An upload whose envelope is in order; its lines are not read yet."""

    upload_id: str
    line_format: LineFormat
    context: dict[str, str]
    lines: bytes


@dataclass
class _Part:
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def name(self) -> str:
        _, options = parse_options_header(self.headers.get("content-disposition", ""))
        return options.get(b"name", b"").decode("utf-8", "replace")


def read_request(headers: Mapping[str, str], body: bytes, limits: Limits) -> TracesRequest:
    """The upload in ``body``; raises ``TracesError`` with the code of what is wrong."""
    key = _IDEMPOTENCY_KEY.fullmatch(headers.get("idempotency-key", ""))
    if key is None:
        raise rejected(
            ErrorCode.INVALID_IDEMPOTENCY_KEY,
            "Idempotency-Key must be sha256:<64 lowercase hex digits of the uncompressed lines>",
        )
    declared = headers.get("x-prime-line-format", LineFormat.TRACE.value)
    if declared not in set(LineFormat):
        raise rejected(
            ErrorCode.LINE_FORMAT_MISMATCH, f"X-Prime-Line-Format {declared!r} is not known"
        )
    parts = _read_parts(headers.get("content-type", ""), body)
    context = _read_metadata([part for part in parts if part.name == "metadata"], limits)
    traces = [part for part in parts if part.name == "traces"]
    if len(traces) != 1:
        raise rejected(
            ErrorCode.INVALID_TRACE, f"the request has {len(traces)} parts named 'traces', not 1"
        )
    lines = _decode(traces[0], limits)
    digest = hashlib.sha256(lines).hexdigest()
    if digest != key.group(1):
        raise rejected(
            ErrorCode.DIGEST_MISMATCH, f"the uncompressed lines have the digest sha256:{digest}"
        )
    return TracesRequest(digest, LineFormat(declared), context, lines)


def _read_parts(content_type: str, body: bytes) -> list[_Part]:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise rejected(ErrorCode.INVALID_METADATA, "the body must be multipart/form-data")
    parts: list[_Part] = []
    name, value = bytearray(), bytearray()

    def part_begin() -> None:
        if len(parts) == _MAX_PARTS:
            raise rejected(
                ErrorCode.INVALID_METADATA, f"the request has more than {_MAX_PARTS} parts"
            )
        parts.append(_Part())

    def header_end() -> None:
        parts[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        name.clear()
        value.clear()

    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": part_begin,
                "on_header_field": lambda data, start, end: name.extend(data[start:end]),
                "on_header_value": lambda data, start, end: value.extend(data[start:end]),
                "on_header_end": header_end,
                "on_part_data": lambda data, start, end: parts[-1].body.extend(
                    memoryview(data)[start:end]
                ),
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as exc:
        raise rejected(
            ErrorCode.INVALID_METADATA, f"the multipart body cannot be read: {exc}"
        ) from None
    return parts


def _read_metadata(parts: list[_Part], limits: Limits) -> dict[str, str]:
    if len(parts) != 1:
        raise rejected(
            ErrorCode.INVALID_METADATA, f"the request has {len(parts)} metadata parts, not 1"
        )
    if len(parts[0].body) > limits.metadata:
        raise rejected(
            ErrorCode.INVALID_METADATA, f"the metadata part is over {limits.metadata} bytes"
        )
    try:
        metadata = orjson.loads(bytes(parts[0].body))
    except orjson.JSONDecodeError as exc:
        raise rejected(ErrorCode.INVALID_METADATA, f"metadata is not JSON: {exc}") from None
    if not isinstance(metadata, dict):
        raise rejected(ErrorCode.INVALID_METADATA, "metadata is not an object")
    version: Any = metadata.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise rejected(ErrorCode.INVALID_METADATA, "metadata.schema_version is not an integer")
    if version != SUPPORTED_SCHEMA_VERSION:
        raise rejected(
            ErrorCode.UNSUPPORTED_SCHEMA_VERSION,
            f"schema_version {version} is not {SUPPORTED_SCHEMA_VERSION}",
        )
    context = metadata.get("context", {})
    if not isinstance(context, dict) or not all(isinstance(v, str) for v in context.values()):
        raise rejected(ErrorCode.INVALID_METADATA, "metadata.context is not an object of strings")
    return context


def _decode(part: _Part, limits: Limits) -> bytes:
    encoding = part.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "gzip":
        return _gunzip(bytes(part.body), limits.upload)
    if encoding != "identity":
        raise rejected(ErrorCode.MALFORMED_ENCODING, f"Content-Encoding {encoding!r} is not gzip")
    if len(part.body) > limits.upload:
        raise _too_large(limits.upload)
    return bytes(part.body)


def _gunzip(rest: bytes, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while rest or not chunks:
        if len(chunks) == _MAX_MEMBERS:
            raise rejected(
                ErrorCode.MALFORMED_ENCODING,
                f"the traces part is a gzip of more than {_MAX_MEMBERS} members",
            )
        member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        try:
            chunk = member.decompress(rest, limit + 1 - size)
        except zlib.error as exc:
            raise rejected(
                ErrorCode.MALFORMED_ENCODING, f"the traces part is not gzip: {exc}"
            ) from None
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if not member.eof:
            raise rejected(ErrorCode.MALFORMED_ENCODING, "the traces part ends inside its gzip")
        rest = member.unused_data
    return b"".join(chunks)


def _too_large(limit: int) -> TracesError:
    return rejected(ErrorCode.UPLOAD_TOO_LARGE, f"the uncompressed lines are over {limit} bytes")
