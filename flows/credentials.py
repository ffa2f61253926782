"""Which credentials an option of ``eval_flow`` means."""

import re
from typing import Any

from prefect.client.schemas.objects import FlowRun
from pydantic import ValidationError

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import problems
from prefect_prime.flows.options import CredentialsOption
from prefect_prime.flows.recording import Log
from prefect_prime.settings import Settings

#: What Prefect lets a block document be called.
_BLOCK_NAME = re.compile(r"[a-z0-9-]+")


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
    _check_name(option, settings)
    try:
        # `_sync`: in an async flow `load` would give a coroutine.
        block: Any = PrimeCredentials.load(option, _sync=True)  # type: ignore[call-arg]  # undeclared
    except ValueError as error:
        raise ConfigurationError(
            f"credentials={option!r}: there is no Prime Credentials block of that name on this"
            " Prefect server. Create it in the UI under Blocks, or with PrimeCredentials("
            f"api_key=...).save({option!r})."
        ) from error
    except RuntimeError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        refused = "; ".join(f"{field} {why}" for field, why in problems(error.__cause__))
        raise ConfigurationError(f"credentials={option!r}: the block's {refused}") from error
    credentials: Credentials = block.to_credentials()
    return credentials


def _check_name(name: object, settings: Settings) -> None:
    """Refuse an API key where a block's name belongs, without showing it."""
    key = None if settings.api_key is None else settings.api_key.get_secret_value()
    if not isinstance(name, str) or not _BLOCK_NAME.fullmatch(name) or name == key:
        raise ConfigurationError(
            f"credentials= was given a {type(name).__name__} that is no block's name (lower-case"
            " letters, digits and dashes). An API key goes into PRIME_API_KEY, or into a block:"
            " PrimeCredentials(api_key=...).save('prime-prod'), and then credentials='prime-prod'."
        )


def warn_if_unsaved(
    option: CredentialsOption,
    credentials: Credentials,
    settings: Settings,
    flow_run: FlowRun,
    log: Log,
) -> None:
    """Say of credentials that no other process can load what that will cost.

    Hooks outside run for deployments; plain ``Credentials`` in a run without one are a test's, or
    somebody's at a prompt.
    """
    if isinstance(option, PrimeCredentials):
        unsaved = option.saved_as is None
    else:
        unsaved = isinstance(option, Credentials) and flow_run.deployment_id is not None
    if unsaved and credentials != Credentials.from_environment(settings):
        log.warning(
            "The credentials of this eval were never saved as a block: should its process die, no"
            " hook outside of it can load them, and the evaluation stays open until reconcile is"
            " given credentials for it. PrimeCredentials(...).save('prime-prod') and"
            " credentials='prime-prod' avoid that."
        )
