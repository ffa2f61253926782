"""Which credentials an option of ``eval_flow`` means."""

from typing import Any

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.options import CredentialsOption
from prefect_prime.settings import Settings


def load_credentials(option: CredentialsOption, settings: Settings) -> Credentials | None:
    """The credentials that an option means; None where the environment has none.

    Raises ``ConfigurationError`` for a block that does not load.
    """
    if option is None:
        return Credentials.from_environment(settings)
    if isinstance(option, Credentials):
        return option
    if isinstance(option, PrimeCredentials):
        return option.to_credentials()
    try:
        # `_sync`: in an async flow `load` would give a coroutine.
        block: Any = PrimeCredentials.load(option, _sync=True)  # type: ignore[call-arg]  # undeclared
    except ValueError as error:
        raise ConfigurationError(
            f"credentials={option!r}: there is no Prime Credentials block of that name on this"
            " Prefect server. Create it in the UI under Blocks, or with PrimeCredentials("
            f"api_key=...).save({option!r})."
        ) from error
    credentials: Credentials = block.to_credentials()
    return credentials
