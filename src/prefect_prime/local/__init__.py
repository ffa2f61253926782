"""The embedded platform: the evaluations API, Prime Traces and two pages, in this process."""

from prefect_prime.local.platform import LocalPlatform, RequestRecord
from prefect_prime.local.rules import Limits

__all__ = ["Limits", "LocalPlatform", "RequestRecord"]
