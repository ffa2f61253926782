"""Who talks to the platform, and where it is: one key with its team and its URLs.

A ``Credentials`` is made from one source (arguments, the block, or the environment)
and is final: neither client it makes reads a setting of its own. The key goes to
``base_url`` and, when there is one, to the traces URL, and to no other origin: a
``base_url`` of one's own without a ``traces_url`` means that traces are skipped.
"""

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import (
    DEFAULT_BASE_URL,
    DEFAULT_FRONTEND_URL,
    DEFAULT_TRACES_URL,
    ApiKey,
    OptionalUrl,
    TeamId,
    Url,
    origin_of,
    problems,
)

if TYPE_CHECKING:
    from prime_traces import TracesClient

    from prefect_prime.platform_client import PlatformClient
    from prefect_prime.settings import Settings


class Credentials(BaseModel):
    """Frozen; ``repr`` shows no key. A bad value raises ConfigurationError naming its field.

    ``team_id``: blank counts as none. URLs lose a trailing slash and ``/api/v1``.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    api_key: ApiKey
    team_id: TeamId = None
    base_url: Url = DEFAULT_BASE_URL
    frontend_url: Url = DEFAULT_FRONTEND_URL
    traces_url: OptionalUrl = None

    def __init__(
        self,
        *,
        api_key: SecretStr | str,
        team_id: str | None = None,
        base_url: str = DEFAULT_BASE_URL,
        frontend_url: str = DEFAULT_FRONTEND_URL,
        traces_url: str | None = None,
    ) -> None:
        refused = ""
        try:
            super().__init__(
                api_key=api_key,
                team_id=team_id,
                base_url=base_url,
                frontend_url=frontend_url,
                traces_url=traces_url,
            )
        except ValidationError as exc:
            # Raised below, outside: a ValidationError carries the refused value itself.
            refused = "; ".join(f"{field} {message}" for field, message in problems(exc))
        if refused:
            raise ConfigurationError(f"credentials: {refused}")

    @classmethod
    def from_environment(cls, settings: "Settings | None" = None) -> Self | None:
        """From ``PRIME_*``, then ``~/.prime/config.json``; None when neither has a key."""
        if settings is None:
            from prefect_prime.settings import load_settings  # noqa: PLC0415 - import time

            settings = load_settings()
        if settings.api_key is None:
            return None
        return cls(
            api_key=settings.api_key,
            team_id=settings.team_id,
            base_url=settings.base_url,
            frontend_url=settings.frontend_url,
            traces_url=settings.traces_url,
        )

    @property
    def origin(self) -> str:
        """``scheme://host:port`` of ``base_url``: which platform this is, without a secret."""
        return origin_of(self.base_url)

    @property
    def effective_traces_url(self) -> str | None:
        """Where traces go; None: nowhere, see :attr:`traces_skipped_reason`."""
        if self.traces_url is None and self.origin == origin_of(DEFAULT_BASE_URL):
            return DEFAULT_TRACES_URL
        return self.traces_url

    @property
    def traces_skipped_reason(self) -> str | None:
        """Why traces go nowhere, and what to set; None when they go somewhere."""
        if self.effective_traces_url is not None:
            return None
        return (
            f"the platform is {self.base_url} and no traces URL is set, so traces are skipped: "
            "set PRIME_TRACES_URL, or traces_url of the credentials, to send them"
        )

    def get_client(self, **options: Any) -> "PlatformClient":
        """A client of the evaluations API, with its own connection pool; options as there."""
        from prefect_prime.platform_client import PlatformClient  # noqa: PLC0415 - import time

        return PlatformClient(self, **options)

    def get_traces_client(self) -> "TracesClient":
        """A client of Prime Traces. ConfigurationError when there is no traces URL."""
        url = self.effective_traces_url
        if url is None:
            raise ConfigurationError(self.traces_skipped_reason)
        from prime_traces import TracesClient  # noqa: PLC0415 - import time

        from prefect_prime.traces_client import TracesUploads  # noqa: PLC0415 - import time

        return TracesClient(TracesUploads(self.api_key, self.team_id, url))
