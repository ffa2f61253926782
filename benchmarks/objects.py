"""Everything that is measured with verifiers' own objects, in one process.

Importing verifiers takes longer than most of the measurements, so contestants share it.
"""

import os

from benchmarks import bare, opponent, product
from benchmarks.stub import set_mode
from benchmarks.workloads import OBJECTS, records

Measured = dict[str, list[dict[str, float]]]


def objects(total: int, total_of_opponent: int, calls: int, rounds: int) -> Measured:
    """By contestant, of each round; ``calls`` has the times of single calls."""
    list(records(OBJECTS, 1))  # imports
    url = os.environ["PRIME_API_BASE_URL"]
    measured: Measured = {"bare": [], "both": [], "opponent": [], "calls": []}
    for _ in range(rounds):
        measured["bare"].append(bare.throughput(OBJECTS, total))
        measured["both"].append(product.throughput(OBJECTS, total))
        set_mode(url, "no-traces")  # its samples are a fallback
        measured["opponent"].append(opponent.throughput(OBJECTS, total_of_opponent))
        set_mode(url, "healthy")
        measured["calls"].append(product.objects(calls))
    return measured
