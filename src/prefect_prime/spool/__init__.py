"""Records on disk until the platform has them."""

from prefect_prime.spool import store
from prefect_prime.spool.deliveries import SINKS, Delivery, Sink, Tally
from prefect_prime.spool.ledger import Ledger
from prefect_prime.spool.spool import Spool

__all__ = ["SINKS", "Delivery", "Ledger", "Sink", "Spool", "Tally", "store"]
