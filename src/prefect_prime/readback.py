"""What became of a samples request whose answer was lost: the rows themselves tell.

The platform appends what it gets, so a request in doubt is not repeated before somebody has
looked. Rows come in the order they were sent, and one request is in flight at a time: the
rows in question are the last ones, unless another process writes into the same evaluation.
"""

import math
from collections.abc import Sequence

from prefect_prime.platform_client import PlatformClient

_PAGE = 100


def missing_rows(
    client: PlatformClient, evaluation_id: str, sample_ids: Sequence[str], *, known: int
) -> list[int]:
    """The positions of the rows that are still to be sent, of a request in doubt.

    ``known`` is how many rows were surely stored before it: while there are no more than that,
    nothing needs to be read, and where the rows behind them are all of this request, nothing
    before them. Raises the errors of ``PlatformClient``.
    """
    total = int(client.list_samples(evaluation_id, page=1, limit=1).get("total") or 0)
    missing = {sample_id: position for position, sample_id in enumerate(sample_ids)}
    if total > known:
        tail = known // _PAGE + 1
        for page in range(math.ceil(total / _PAGE), 0, -1):
            found = len(sample_ids) - len(missing)
            if not missing or (page < tail and found == total - known):
                break
            listed = client.list_samples(evaluation_id, page=page, limit=_PAGE)
            for row in listed.get("samples") or ():
                missing.pop(str(row.get("sample_id")), None)
    return sorted(missing.values())
