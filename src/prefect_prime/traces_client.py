"""Prime Traces' own client, with a compression that keeps up with the disk, and discreet errors.

Its wire format, its errors and its limits stay the source. Another gzip: the standard library's
takes 100 ms for a megabyte at the level that the client uses, and the GIL for the small ones;
``isal`` takes 2 ms, in any thread. And what an error quotes of an answer is short, printable and
free of the key: whoever answered need not be Prime Traces.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import httpx
from isal import isal_zlib
from prime_traces.core.client import DEFAULT_TIMEOUT, BaseTracesAPIClient, TracesAPIClient
from pydantic import SecretStr

from prefect_prime.errors import APIError, detached, mark_ambiguous
from prefect_prime.transport import open_pool, quoted, user_agent

#: Of 0 to 3: near the size of zlib's level 1, at four times its speed.
_LEVEL = 2
#: The largest window, and a gzip header; without a time, so that a retry has the same bytes.
_GZIP = 16 + 15


class Packed(NamedTuple):
    """Lines as they go over the wire: hex sha256 and size in bytes of what they are, and that
    gzipped.
    """

    digest: str
    size: int
    gzipped: bytes


def pack(pieces: Iterable[bytes]) -> Packed:
    """The pieces one after the other, of which one is in memory at a time."""
    digest, gzip, size = sha256(), isal_zlib.compressobj(_LEVEL, wbits=_GZIP), 0
    packed = []
    for piece in pieces:
        digest.update(piece)
        packed.append(gzip.compress(piece))
        size += len(piece)
    packed.append(gzip.flush())
    return Packed(digest.hexdigest(), size, b"".join(packed))


class TracesUploads(TracesAPIClient):
    """As ``TracesAPIClient``, but that it follows no redirect, and compresses every upload,
    whatever ``compress`` says.
    """

    def __init__(self, api_key: SecretStr, team_id: str | None, base_url: str) -> None:
        BaseTracesAPIClient.__init__(
            self,
            api_key=api_key.get_secret_value(),
            # "" is final where None would be looked up in the environment.
            team_id=team_id or "",
            base_url=base_url,
        )
        headers = httpx.Headers(self._default_headers(user_agent()))
        self.client = open_pool(headers=headers, timeout=DEFAULT_TIMEOUT)

    def upload_batch(self, *args: Any, **options: Any) -> dict[str, Any]:
        """As there, but that the body may be packed already, and that a receipt without a commit
        is an ``APIError`` too, as is a page.
        """
        failure: APIError
        try:
            receipt = super().upload_batch(*args, **{**options, "compress": False})
        except APIError as error:
            failure = detached(error)
            failure.args = (f"POST /traces: {self._told(failure)}",)
        except ValueError:  # no JSON; the error holds the whole page
            failure = mark_ambiguous(
                APIError(
                    f"POST /traces: {self.base_url} answered with something that is not JSON. Is"
                    " this Prime Traces, or the login page of a proxy?",
                    status_code=200,
                )
            )
        else:
            if receipt.get("status") == "committed" and "upload_id" in receipt:
                return receipt
            answer = quoted(repr(receipt), SecretStr(str(self.api_key)))
            failure = APIError(
                f"POST /traces: answered without committing the upload: {answer}", status_code=200
            )
        raise failure

    def _told(self, error: APIError) -> str:
        if error.status_code is not None and 300 <= error.status_code < 400:  # noqa: PLR2004 - HTTP's own
            return (
                f"{self.base_url} redirects ({error.status_code}); nothing was sent there. If that"
                " is Prime Traces, set PRIME_TRACES_URL, or traces_url of the credentials"
            )
        return quoted(str(error), SecretStr(str(self.api_key)))

    def _multipart_files(self, body: bytes | Packed, **options: Any) -> dict[str, Any]:
        packed = body if isinstance(body, Packed) else pack([body])
        return super()._multipart_files(b"", **{**options, "compressed": packed.gzipped})
