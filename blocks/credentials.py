"""The block that holds who talks to the platform, and where it is.

Its fields are validated by the same types as ``prefect_prime.credentials.Credentials``,
which it is turned into. Everything comes from the block: a field left out has its
default, never a value of the environment.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from prefect.blocks.abstract import CredentialsBlock
from pydantic import ConfigDict, Field, HttpUrl, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.fields import (
    DEFAULT_BASE_URL,
    DEFAULT_FRONTEND_URL,
    ApiKey,
    OptionalUrl,
    TeamId,
    Url,
    problems,
)

if TYPE_CHECKING:
    from prime_traces import TracesClient

    from prefect_prime.platform_client import PlatformClient


class PrimeCredentials(CredentialsBlock):
    """Credentials for the Prime Intellect platform: an API key, its team and its URLs.

    Example:
        Load stored credentials and list the newest evaluations:
        ```python
        from prefect_prime.blocks import PrimeCredentials

        credentials = PrimeCredentials.load("BLOCK_NAME")
        with credentials.get_client() as client:
            print(client.list_evaluations(limit=10))
        ```
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    _block_type_name: ClassVar[str | None] = "Prime Credentials"
    _block_type_slug: ClassVar[str | None] = "prime-credentials"
    _logo_url: ClassVar[HttpUrl | None] = HttpUrl(
        "https://github.com/PrimeIntellect-ai.png?size=200"
    )
    _documentation_url: ClassVar[HttpUrl | None] = HttpUrl("https://docs.primeintellect.ai")
    _description: ClassVar[str | None] = (
        "Credentials for the Prime Intellect platform: an API key, its team and its URLs."
    )

    api_key: ApiKey = Field(
        title="API key",
        description="API key of the platform, with write access to evaluations and traces.",
    )
    team_id: TeamId = Field(
        default=None,
        title="Team ID",
        description="Team that owns the evaluations; leave it empty for your personal account.",
    )
    base_url: Url = Field(
        default=DEFAULT_BASE_URL,
        title="Platform URL",
        description="Address of the platform's API, with or without /api/v1.",
    )
    frontend_url: Url = Field(
        default=DEFAULT_FRONTEND_URL,
        title="Dashboard URL",
        description="Address of the dashboard, for links to evaluations.",
    )
    traces_url: OptionalUrl = Field(
        default=None,
        title="Prime Traces URL",
        description=(
            "Address of Prime Traces. Empty means the public service for the public platform; "
            "for any other platform URL it means that traces are not sent."
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refused: ValidationError | None = None
        try:
            super().__init__(*args, **kwargs)
        except ValidationError as exc:
            refused = _without_values(exc)
        if refused is not None:
            raise refused

    @classmethod
    def from_environment(cls) -> Self:
        """From ``PRIME_*``, then ``~/.prime/config.json``; ConfigurationError without a key."""
        credentials = Credentials.from_environment()
        if credentials is None:
            raise ConfigurationError(
                "no API key: set PRIME_API_KEY, or api_key in ~/.prime/config.json "
                "(`prime login` writes it)"
            )
        return cls(**dict(credentials))

    @property
    def saved_as(self) -> str | None:
        """The name of the document it was loaded from or saved to; None if it never was."""
        return self._block_document_name

    def to_credentials(self) -> Credentials:
        """The same values as plain ``Credentials``, which know no Prefect."""
        return Credentials(
            api_key=self.api_key,
            team_id=self.team_id,
            base_url=self.base_url,
            frontend_url=self.frontend_url,
            traces_url=self.traces_url,
        )

    def get_client(self) -> "PlatformClient":
        """A client of the evaluations API, with its own connection pool."""
        return self.to_credentials().get_client()

    def get_traces_client(self) -> "TracesClient":
        """A client of Prime Traces. ConfigurationError when there is no traces URL."""
        return self.to_credentials().get_traces_client()


def _without_values(exc: ValidationError) -> ValidationError:
    """``exc`` without the refused values: it pickles them, and one may be a key."""
    return ValidationError.from_exception_data(
        exc.title,
        [
            InitErrorDetails(
                type=PydanticCustomError("refused", "{why}", {"why": message}),
                loc=tuple(field.split(".")),
                input=None,
            )
            for field, message in problems(exc)
        ],
        hide_input=True,
    )
