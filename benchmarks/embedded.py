"""The embedded platform under load: what it takes in, and how long a reader waits meanwhile."""

import os
import subprocess
import sys
import tempfile
import threading
from time import perf_counter
from typing import Self

import httpx
import orjson

from benchmarks.bare import Bare
from benchmarks.measuring import median
from benchmarks.workloads import records, size_of
from prefect_prime.credentials import Credentials
from prefect_prime.records import stamp

#: Seconds between two reads.
_PAUSE = 0.05


def ingest(workload: str, total: int) -> dict[str, float]:
    """MB/s of JSON until all is stored; milliseconds of a reader's requests: median, longest."""
    number = max(1, total // size_of(workload))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "prefect_prime.local", "--port", "0", "--data", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split(" is at ")[1].split()[0]
            return _ingest(url, workload, number)
        finally:
            process.terminate()
            process.wait()


def _ingest(url: str, workload: str, number: int) -> dict[str, float]:
    credentials = Credentials(
        api_key=os.environ["PRIME_API_KEY"], base_url=url, traces_url=url, frontend_url=url
    )
    with credentials.get_client() as client:
        environment = client.resolve_environment("bench")
        evaluation = client.create_evaluation(name="bench", environments=[environment])
    evaluation_id = evaluation["evaluation_id"]
    reader = _Reader(url, [f"/traces?run_id={evaluation_id}&limit=50", "/evaluations/?limit=50"])
    prepared = records(workload, number)
    sent = 0
    begun = perf_counter()
    with reader, Bare(url) as bare:
        for record in prepared:
            line = orjson.dumps(stamp(record, evaluation_id), option=orjson.OPT_APPEND_NEWLINE)
            sent += bare.add(line)
    seconds = perf_counter() - begun
    return {
        "MB/s": sent / 1e6 / seconds,
        "read": median(reader.times),
        "longest": max(reader.times),
    }


class _Reader:
    """Reads pages of the platform as long as its block lasts, and times each read."""

    def __init__(self, url: str, pages: list[str]) -> None:
        self.times: list[float] = []
        self._url = f"{url}/api/v1"
        self._pages = pages
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        key = {"Authorization": f"Bearer {os.environ['PRIME_API_KEY']}"}
        with httpx.Client(headers=key, timeout=60) as client:
            while not self._over.is_set():
                for page in self._pages:
                    begun = perf_counter()
                    client.get(f"{self._url}{page}").raise_for_status()
                    self.times.append(1e3 * (perf_counter() - begun))
                self._over.wait(_PAUSE)
