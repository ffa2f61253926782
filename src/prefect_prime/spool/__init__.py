"""Records on disk until the platform has them."""

from prefect_prime.spool import store
from prefect_prime.spool.ledger import SINKS, Delivery, Ledger, Sink, Tally
from prefect_prime.spool.spool import Spool

__all__ = ["SINKS", "Delivery", "Ledger", "Sink", "Spool", "Tally", "store"]
