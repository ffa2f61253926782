"""A samples request whose answer was lost is looked up in the rows themselves."""

import json
from collections.abc import Iterator

import pytest

from prefect_prime.local import LocalPlatform
from prefect_prime.platform_client import PlatformClient
from prefect_prime.readback import missing_rows


@pytest.fixture
def client(platform: LocalPlatform) -> Iterator[PlatformClient]:
    with platform.credentials.get_client() as client:
        yield client


@pytest.fixture
def evaluation_id(client: PlatformClient) -> str:
    environment = client.resolve_environment("toy")["id"]
    created = client.create_evaluation(name="readback", environments=[{"id": environment}])
    return str(created["evaluation_id"])


def ids(first: int, count: int) -> list[str]:
    return [f"row-{number}" for number in range(first, first + count)]


def body(first: int, count: int) -> bytes:
    return json.dumps({"samples": [{"sample_id": each} for each in ids(first, count)]}).encode()


def test_while_there_is_no_more_than_was_known_all_of_it_is_to_be_sent(
    client: PlatformClient, evaluation_id: str, platform: LocalPlatform
) -> None:
    client.push_samples(evaluation_id, body(0, 250))
    before = len(platform.requests)

    assert missing_rows(client, evaluation_id, ids(250, 5), known=250) == list(range(5))
    assert len(platform.requests) == before + 1


def test_what_was_stored_is_not_sent_again_and_only_the_tail_is_read(
    client: PlatformClient, evaluation_id: str, platform: LocalPlatform
) -> None:
    client.push_samples(evaluation_id, body(0, 1000))
    client.push_samples(evaluation_id, body(1000, 130))
    before = len(platform.requests)

    assert missing_rows(client, evaluation_id, ids(1000, 130), known=1000) == []
    assert len(platform.requests) == before + 3  # the count, and two pages


def test_another_writer_s_rows_in_between_are_passed_over(
    client: PlatformClient, evaluation_id: str
) -> None:
    client.push_samples(evaluation_id, body(0, 20))
    client.push_samples(evaluation_id, body(5000, 300))

    assert missing_rows(client, evaluation_id, ids(0, 20), known=0) == []
    assert missing_rows(client, evaluation_id, ids(20, 3), known=20) == [0, 1, 2]


def test_of_a_request_that_is_there_in_part_the_rest_is_to_be_sent(
    client: PlatformClient, evaluation_id: str
) -> None:
    client.push_samples(evaluation_id, body(0, 3))

    assert missing_rows(client, evaluation_id, ids(0, 5), known=0) == [3, 4]


def test_one_that_ends_with_the_oldest_page_is_found(
    client: PlatformClient, evaluation_id: str
) -> None:
    client.push_samples(evaluation_id, body(0, 5))

    assert missing_rows(client, evaluation_id, ids(0, 5), known=0) == []


def test_where_all_that_came_after_is_of_the_request_nothing_before_is_read(
    client: PlatformClient, evaluation_id: str, platform: LocalPlatform
) -> None:
    client.push_samples(evaluation_id, body(0, 1000))
    client.push_samples(evaluation_id, body(1000, 3))
    before = len(platform.requests)

    assert missing_rows(client, evaluation_id, ids(1000, 5), known=1000) == [3, 4]
    assert len(platform.requests) == before + 2  # the count, and the last page
