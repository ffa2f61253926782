"""The embedded platform: the evaluations API, Prime Traces and two pages, in this process."""

from prefect_prime.local.fault import Fault
from prefect_prime.local.faults import Arrival, Faults
from prefect_prime.local.platform import LocalPlatform
from prefect_prime.local.recorder import RequestRecord
from prefect_prime.local.rules import Limits

__all__ = ["Arrival", "Fault", "Faults", "Limits", "LocalPlatform", "RequestRecord"]
