"""The bare pipeline: the least that has to happen between a record and the platform.

Each record is encoded and copied to disk; each 8 MiB of them are hashed, compressed and posted
as Prime Traces takes them, four at a time. No ids, no metrics, no ledger, no Prefect.
"""

import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from threading import Semaphore
from time import perf_counter
from typing import Self

import httpx
import orjson
from isal import igzip

from benchmarks.workloads import OBJECTS, records, size_of

SEGMENT_BYTES = 8 * 1024 * 1024
IN_FLIGHT = 4


def throughput(workload: str, total: int) -> dict[str, float]:
    """MB/s of JSON for about ``total`` bytes; objects are asked for their record first."""
    number = max(1, total // size_of(workload))
    made = records(workload, number)
    mappings = (each.to_record() for each in made) if workload == OBJECTS else made
    begun = perf_counter()
    sent = 0
    with Bare(os.environ["PRIME_TRACES_URL"]) as bare:
        for mapping in mappings:
            sent += bare.add(orjson.dumps(mapping, option=orjson.OPT_APPEND_NEWLINE))
    return {"MB/s": sent / 1e6 / (perf_counter() - begun)}


def stub_alone(total: int) -> dict[str, float]:
    """MB/s of bodies that are made once and sent as they are: what the stub can take."""
    number = max(IN_FLIGHT, total // SEGMENT_BYTES)
    body = bytes(SEGMENT_BYTES)
    url = f"{os.environ['PRIME_TRACES_URL']}/api/v1/traces"
    with httpx.Client(timeout=120) as client, ThreadPoolExecutor(IN_FLIGHT) as pool:
        begun = perf_counter()
        for answer in pool.map(lambda _: client.post(url, content=body), range(number)):
            answer.raise_for_status()
        return {"MB/s": number * SEGMENT_BYTES / 1e6 / (perf_counter() - begun)}


class Bare:
    """Takes lines; in ``with``, whose end waits until everything is sent."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/api/v1/traces"
        self._client = httpx.Client(
            timeout=120, headers={"Authorization": f"Bearer {os.environ['PRIME_API_KEY']}"}
        )
        self._pool = ThreadPoolExecutor(IN_FLIGHT)
        self._room = Semaphore(2 * IN_FLIGHT)
        self._sent: list[Future[None]] = []
        self._copy = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed at the end
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> int:
        """One line, with its line end; its length."""
        self._copy.write(line)
        self._lines.append(line)
        self._size += len(line)
        if self._size >= SEGMENT_BYTES:
            self._close_segment()
        return len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lines:
            self._close_segment()
        self._pool.shutdown()
        for each in self._sent:
            each.result()
        self._client.close()
        self._copy.close()

    def _close_segment(self) -> None:
        self._room.acquire()
        self._sent.append(self._pool.submit(self._send, b"".join(self._lines)))
        self._lines.clear()
        self._size = 0

    def _send(self, body: bytes) -> None:
        try:
            digest = sha256(body).hexdigest()
            packed = igzip.compress(body, 2, mtime=0)
            part = ("traces.jsonl", packed, "application/x-ndjson", {"Content-Encoding": "gzip"})
            metadata = (None, b'{"schema_version":1}', "application/json")
            self._client.post(
                self._url,
                files={"metadata": metadata, "traces": part},
                headers={
                    "Idempotency-Key": f"sha256:{digest}",
                    "X-Prime-Line-Format": "episode",
                },
            ).raise_for_status()
        finally:
            self._room.release()
