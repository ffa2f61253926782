"""What became of a samples request whose answer was lost: the rows themselves tell.

The platform appends what it gets, so a request in doubt is not repeated before somebody has
looked. Rows come in the order they were sent, and one request is in flight at a time: the
rows in question are the last ones, unless another process writes into the same evaluation.
"""

import math

from prefect_prime import encoding
from prefect_prime.platform_client import PlatformClient

_PAGE = 100


def missing_rows(
    client: PlatformClient, evaluation_id: str, body: bytes, *, known: int
) -> bytes | None:
    """The request that is still to be sent: without the rows that are there; None if all are.

    ``known`` is how many rows were surely stored before it. While there are no more than
    that, nothing needs to be read. Raises the errors of ``PlatformClient``.
    """
    total = int(client.list_samples(evaluation_id, page=1, limit=1).get("total") or 0)
    if total <= known:
        return body
    rows = {str(row["sample_id"]): row for row in encoding.decode(body)["samples"]}
    for page in range(math.ceil(total / _PAGE), 0, -1):
        if not rows:
            return None
        listed = client.list_samples(evaluation_id, page=page, limit=_PAGE)
        for row in listed.get("samples") or ():
            rows.pop(str(row.get("sample_id")), None)
    return encoding.dumps({"samples": list(rows.values())}) if rows else None
