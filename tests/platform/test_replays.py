from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from prefect_prime import errors
from prefect_prime.credentials import Credentials
from prefect_prime.platform_client import PlatformClient

KEY = "pit_0123456789abcdef"
#: What satisfies every call.
READY = {"evaluation_id": "ev", "data": {"id": "env"}}


def create(client: PlatformClient):
    return client.create_evaluation(name="nightly", environments=[{"id": "env"}])


#: Every call, and whether an ambiguous failure of it may be replayed.
CALLS = {
    "resolve_environment": (lambda c: c.resolve_environment("gsm8k"), True),
    "lookup_environment": (lambda c: c.lookup_environment("env"), True),
    "latest_environment": (lambda c: c.latest_environment("prime", "gsm8k"), True),
    "create_evaluation": (create, False),
    "list_evaluations": (lambda c: c.list_evaluations(), True),
    "get_evaluation": (lambda c: c.get_evaluation("ev"), True),
    "update_evaluation": (lambda c: c.update_evaluation("ev", metadata={}), True),
    "push_samples": (lambda c: c.push_samples("ev", [{"sample_id": "1"}]), False),
    "list_samples": (lambda c: c.list_samples("ev"), True),
    "finalize_evaluation": (lambda c: c.finalize_evaluation("ev"), False),
}
every_call = pytest.mark.parametrize(("call", "idempotent"), CALLS.values(), ids=CALLS)


@every_call
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_ambiguous_answer_replays_only_what_is_idempotent(
    scripted, client, call, idempotent, status
):
    scripted.script = [scripted.Reply(status, {"detail": "busy"}), scripted.Reply(200, READY)]
    if idempotent:
        call(client)
        assert len(scripted.asked) == 2
        assert scripted.asked[0].body == scripted.asked[1].body
        return
    with pytest.raises(errors.APIError) as caught:
        call(client)
    assert errors.is_ambiguous(caught.value)
    assert len(scripted.asked) == 1


@every_call
@pytest.mark.parametrize("action", ["drop", "reset"])
def test_a_lost_answer_replays_only_what_is_idempotent(scripted, client, call, idempotent, action):
    scripted.script = [scripted.Reply(action=action), scripted.Reply(200, READY)]
    if idempotent:
        call(client)
        assert len(scripted.asked) == 2
        return
    with pytest.raises(errors.TransportError) as caught:
        call(client)
    assert errors.is_ambiguous(caught.value)
    assert len(scripted.asked) == 1


@pytest.mark.parametrize("call", [call for call, _ in CALLS.values()], ids=CALLS)
def test_too_many_requests_replays_every_call(scripted, client, slept, call):
    scripted.script = [scripted.Reply(429), scripted.Reply(200, READY)]
    call(client)
    assert (len(scripted.asked), len(slept)) == (2, 1)


def test_a_time_out_of_a_push_is_raised_at_once_as_ambiguous(scripted):
    scripted.script = [scripted.Reply(action="stall")]
    with (
        PlatformClient(scripted.credentials(), timeout=0.2) as client,
        pytest.raises(errors.APITimeoutError) as caught,
    ):
        client.push_samples("ev", [{}])
    assert errors.is_ambiguous(caught.value)
    assert errors.is_transient(caught.value)
    assert len(scripted.asked) == 1


def test_a_platform_that_starts_late_gets_even_a_create(closed_port, start_platform):
    credentials = Credentials(api_key=KEY, base_url=f"http://127.0.0.1:{closed_port}")

    def start(_: float) -> None:
        started = start_platform(closed_port)
        started.script = [started.Reply(200, {"evaluation_id": "ev"})]

    with PlatformClient(credentials, sleep=start) as client:
        assert create(client)["evaluation_id"] == "ev"


def test_a_refused_connection_is_no_ambiguous_failure(closed_port, slept):
    credentials = Credentials(api_key=KEY, base_url=f"http://127.0.0.1:{closed_port}")
    with (
        PlatformClient(credentials, sleep=slept.append) as client,
        pytest.raises(errors.TransportError, match=f"127.0.0.1:{closed_port}") as caught,
    ):
        create(client)
    assert not errors.is_ambiguous(caught.value)
    assert errors.is_transient(caught.value)
    assert len(slept) == 2


def test_the_backoff_is_short_and_few(scripted, client, slept):
    scripted.script = [scripted.Reply(503)]
    with pytest.raises(errors.RetryableAPIError):
        client.get_evaluation("ev")
    assert len(scripted.asked) == 3
    assert len(slept) == 2
    assert all(0 < seconds <= 2 for seconds in slept)


@pytest.mark.parametrize(
    ("header", "expected"), [("0.5", 0.5), ("7", 7), ("3600", 60), ("1e400", 60), ("-1", 0)]
)
def test_retry_after_in_seconds_is_honoured_up_to_a_minute(
    scripted, client, slept, header, expected
):
    scripted.script = [scripted.Reply(429, headers={"Retry-After": header}), scripted.Reply()]
    client.get_evaluation("ev")
    assert slept == [expected]


def test_retry_after_as_a_date_is_honoured(scripted, client, slept):
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    scripted.script = [scripted.Reply(503, headers={"Retry-After": later}), scripted.Reply()]
    client.get_evaluation("ev")
    assert slept == [60]


def test_a_retry_after_that_is_neither_falls_back_to_the_backoff(scripted, client, slept):
    scripted.script = [scripted.Reply(429, headers={"Retry-After": "soon"}), scripted.Reply()]
    client.get_evaluation("ev")
    assert 0 < slept[0] <= 2
