import logging
import pickle

import pytest

from prefect_prime import errors

KEY = "pit_0123456789abcdef"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.ValidationRejectedError),
        (401, errors.UnauthorizedError),
        (402, errors.PaymentRequiredError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.APIError),
        (413, errors.APIError),
        (422, errors.APIError),
        (429, errors.RetryableAPIError),
        (500, errors.APIError),
        (503, errors.RetryableAPIError),
    ],
)
def test_a_status_becomes_its_error_with_the_call_and_the_reason(scripted, client, status, kind):
    scripted.script = [scripted.Reply(status, {"detail": "the reason"})]
    with pytest.raises(errors.APIError) as caught:
        client.push_samples("ev", [{}])
    assert type(caught.value) is kind
    assert caught.value.status_code == status
    assert str(caught.value).startswith("POST /evaluations/ev/samples: ")
    if status != 402:  # prime_traces has its own words for it
        assert "the reason" in str(caught.value)


def test_an_answer_that_is_a_page_is_an_error_that_says_so(scripted, client):
    page = b"<html>\r\n<h1>Sign in\x1b[31m</h1></html>" + b"x" * 5000
    scripted.script = [scripted.Reply(200, page, {"Content-Type": "text/html"})]
    with pytest.raises(errors.APIError, match="not a JSON object") as caught:
        client.push_samples("ev", [{}])
    assert "text/html" in str(caught.value)
    assert "Sign in" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert errors.is_ambiguous(caught.value)


@pytest.mark.parametrize("body", [b"[]", b'"ok"', b"{", b"null"])
def test_an_answer_that_is_no_object_is_an_error(scripted, client, body):
    scripted.script = [scripted.Reply(200, body)]
    with pytest.raises(errors.APIError, match="not a JSON object"):
        client.get_evaluation("ev")


def test_an_empty_answer_is_an_empty_object(scripted, client):
    scripted.script = [scripted.Reply(204, b"")]
    assert client.update_evaluation("ev", metrics={}) == {}


def test_a_created_evaluation_without_an_id_is_an_ambiguous_failure(scripted, client):
    scripted.script = [scripted.Reply(200, {"name": "nightly"})]
    with pytest.raises(errors.APIError, match=r"without an evaluation_id \(keys: name\)") as caught:
        client.create_evaluation(name="nightly", environments=[])
    assert errors.is_ambiguous(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_nothing_goes_there(scripted, client, start_platform, status):
    elsewhere = start_platform()
    scripted.script = [scripted.Reply(status, headers={"Location": f"{elsewhere.url}/token?x=1"})]
    with pytest.raises(errors.APIError, match=elsewhere.url) as caught:
        client.update_evaluation("ev", metrics={})
    assert caught.value.status_code == status
    assert "token" not in str(caught.value)
    assert elsewhere.asked == []
    assert len(scripted.asked) == 1


@pytest.mark.parametrize(
    "body",
    [{"error": {"code": ["x"], "message": {"a": 1}}}, {"detail": [{"loc": ["name"]}]}, b"\xff"],
)
def test_an_odd_error_body_is_still_a_typed_error(scripted, client, body):
    scripted.script = [scripted.Reply(503, body)]
    with pytest.raises(errors.RetryableAPIError) as caught:
        client.get_evaluation("ev")
    assert pickle.loads(pickle.dumps(caught.value)).status_code == 503  # noqa: S301 - made here


@pytest.mark.parametrize("status", [200, 302, 401, 403, 500])
def test_no_error_holds_the_key_even_when_the_platform_echoes_it(scripted, client, caplog, status):
    caplog.set_level(logging.DEBUG, logger="prefect_prime")
    echo = f"<pre>Authorization: Bearer {KEY}</pre>".encode()
    scripted.script = [scripted.Reply(status, echo, {"Location": f"http://{KEY}.example/"})]
    with pytest.raises(errors.APIError) as caught:
        client.get_evaluation("ev")
    error = caught.value
    assert KEY not in f"{error} {error!r} {vars(error)} {caplog.text}"
    assert KEY.encode() not in pickle.dumps(error)
    assert (error.__context__, error.__cause__) == (None, None)


def test_a_lost_connection_leaves_no_request_on_the_error(scripted, client):
    scripted.script = [scripted.Reply(action="drop")]
    with pytest.raises(errors.TransportError) as caught:
        client.finalize_evaluation("ev")
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)
    assert KEY.encode() not in pickle.dumps(caught.value)


def test_nothing_shows_the_clients_key(client):
    assert KEY not in repr(client)
