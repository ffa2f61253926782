import os
import pickle
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.testing.standard_test_suites.blocks import BlockStandardTestSuite
from pydantic import ValidationError

from prefect_prime.blocks import PrimeCredentials
from prefect_prime.credentials import Credentials
from prefect_prime.errors import ConfigurationError
from prefect_prime.platform_client import PlatformClient

KEY = "pit_0123456789abcdef"
FIELDS = {
    "api_key": KEY,
    "team_id": "team",
    "base_url": "http://127.0.0.1:8765",
    "frontend_url": "http://127.0.0.1:8766",
    "traces_url": "http://127.0.0.1:8767",
}


class TestPrimeCredentialsBlock(BlockStandardTestSuite):
    @pytest.fixture
    def block(self):
        return PrimeCredentials

    #: Not collected: it downloads the logo, and tests reach this machine alone.
    test_has_a_valid_image = None


def test_the_logo_is_no_file_of_a_package_registry():
    logo = urlsplit(str(PrimeCredentials._logo_url))
    assert (logo.scheme, logo.hostname) == ("https", "github.com")


def test_every_field_has_a_title_of_its_own():
    titles = [field.title for field in PrimeCredentials.model_fields.values()]
    assert all(titles)
    assert len(set(titles)) == len(titles)


def test_a_saved_block_is_loaded_with_every_value(prefect_server):  # noqa: ARG001 - it runs
    PrimeCredentials(**FIELDS).save("prime-prod")
    loaded = PrimeCredentials.load("prime-prod")
    assert loaded.to_credentials() == Credentials(**FIELDS)


async def save_as_a_form_does(name: str, data: dict[str, object]) -> None:
    async with get_client() as client:
        block_type = await client.read_block_type_by_slug("prime-credentials")
        schema = await client.read_block_schema_by_checksum(
            PrimeCredentials._calculate_schema_checksum()
        )
        response = await client.request(
            "POST",
            "/block_documents/",
            json={
                "name": name,
                "data": data,
                "block_type_id": str(block_type.id),
                "block_schema_id": str(schema.id),
            },
        )
        response.raise_for_status()


def test_what_the_form_of_the_ui_leaves_empty_is_none(prefect_server, run):  # noqa: ARG001 - same
    PrimeCredentials.register_type_and_schema()
    run(save_as_a_form_does("form", {"api_key": f"{KEY}\n", "team_id": "", "traces_url": None}))
    assert PrimeCredentials.load("form").to_credentials() == Credentials(api_key=KEY)


def test_a_bad_value_from_the_form_is_named_when_it_is_loaded(prefect_server, run):  # noqa: ARG001 - same
    PrimeCredentials.register_type_and_schema()
    run(save_as_a_form_does("bad-form", {"api_key": "geheim\u00e4", "base_url": "platform"}))
    with pytest.raises(RuntimeError, match="bad-form") as caught:
        PrimeCredentials.load("bad-form")
    assert "base_url" in str(caught.value.__cause__)
    assert "geheim" not in f"{caught.value} {caught.value.__cause__}"


def test_the_block_is_registered_from_the_command_line(prefect_server, run):  # noqa: ARG001 - same
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "block", "register", "-m", "prefect_prime.blocks"],
        env={**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Prime Credentials" in done.stdout

    async def registered() -> str:
        async with get_client() as client:
            return (await client.read_block_type_by_slug("prime-credentials")).name

    assert run(registered()) == "Prime Credentials"


def test_the_same_checks_as_plain_credentials():
    block = PrimeCredentials(api_key=f" {KEY}\n", team_id=" ", base_url="http://host/api/v1/")
    assert block.to_credentials() == Credentials(api_key=KEY, base_url="http://host")


def test_a_refused_key_is_in_no_part_of_the_error():
    with pytest.raises(ValidationError, match="api_key") as caught:
        PrimeCredentials(api_key="geheim\u00e4")
    assert "geheim" not in f"{caught.value} {caught.value.errors()}"
    assert b"geheim" not in pickle.dumps(caught.value)
    assert caught.value.__context__ is None


def test_nothing_shows_the_key():
    block = PrimeCredentials(api_key=KEY)
    assert KEY not in f"{block!r} {block} {block.model_dump_json()}"


def test_the_block_gives_both_clients():
    block = PrimeCredentials(**FIELDS)
    with block.get_client() as client:
        assert isinstance(client, PlatformClient)
    traces = block.get_traces_client()
    assert (traces.client.base_url, traces.client.team_id) == (FIELDS["traces_url"], "team")
    traces.client.close()


def test_the_block_takes_nothing_from_the_environment(monkeypatch):
    monkeypatch.setenv("PRIME_TEAM_ID", "other")
    monkeypatch.setenv("PRIME_BASE_URL", "http://other")
    assert PrimeCredentials(api_key=KEY).to_credentials() == Credentials(api_key=KEY)


def test_the_environment_can_be_kept_in_a_block(monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    monkeypatch.setenv("PRIME_TEAM_ID", "team")
    block = PrimeCredentials.from_environment()
    assert block.to_credentials() == Credentials(api_key=KEY, team_id="team")


def test_an_environment_without_a_key_says_what_to_set():
    with pytest.raises(ConfigurationError, match="PRIME_API_KEY"):
        PrimeCredentials.from_environment()


def test_importing_the_blocks_loads_no_server_and_no_client():
    heavy = ("uvicorn", "verifiers", "prefect_prime.platform_client", "prefect_prime.settings")
    code = f"import sys, prefect_prime.blocks; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
