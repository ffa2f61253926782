import inspect
import pickle
import re

import httpx
import pytest

from prefect_prime import errors

REQUEST = httpx.Request("GET", "http://platform", headers={"Authorization": "Bearer secret"})


def answered(status: int, code: str | None = None) -> errors.APIError:
    kinds = {
        400: errors.ValidationRejectedError,
        401: errors.UnauthorizedError,
        402: errors.PaymentRequiredError,
        403: errors.ForbiddenError,
        404: errors.NotFoundError,
        **dict.fromkeys((429, 502, 503, 504), errors.RetryableAPIError),
    }
    return kinds.get(status, errors.APIError)("no", status_code=status, code=code)


def caused_by(cause: Exception) -> errors.TransportError:
    error = errors.TransportError("no answer")
    error.__cause__ = cause
    return error


def test_all_names_every_error_and_predicate_that_is_public():
    public = {
        name
        for name, value in vars(errors).items()
        if not name.startswith("_")
        and (
            (inspect.isclass(value) and issubclass(value, BaseException))
            or (inspect.isfunction(value) and value.__module__ == errors.__name__)
        )
    }
    assert set(errors.__all__) == public


def test_all_is_sorted():
    assert sorted(errors.__all__) == errors.__all__


def test_the_docstring_draws_every_error():
    classes = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    drawn = set(re.findall(r"── (\w+)", str(errors.__doc__)))
    assert drawn == classes


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("write this"),
        errors.RecordRejectedError("circular"),
        errors.APIError("closed", status_code=409, code="closed"),
        errors.RetryableAPIError("later", status_code=503, retry_after=2.5),
        errors.mark_ambiguous(errors.APITimeoutError("slow")),
        errors.TraceTooLargeError(3, 100, 64),
    ],
)
def test_an_error_pickles_with_its_attributes(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 520])
def test_a_busy_or_broken_service_is_transient(status):
    assert errors.is_transient(answered(status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 501])
def test_an_answer_about_the_request_is_not_transient(status):
    assert not errors.is_transient(answered(status))


def test_a_success_that_is_no_answer_may_be_one_next_time():
    assert errors.is_transient(errors.APIError("a login page", status_code=200))


@pytest.mark.parametrize(("status", "expected"), [(302, True), (401, True), (404, False)])
def test_what_a_person_has_to_set_right_is_told_apart(status, expected):
    assert errors.is_settings_fault(errors.APIError("elsewhere", status_code=status)) is expected


def test_a_failure_of_the_transport_is_transient():
    assert errors.is_transient(errors.APITimeoutError("slow"))


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_broken_gateway_leaves_the_outcome_open(status):
    assert errors.is_ambiguous(answered(status))


@pytest.mark.parametrize(
    "error", [answered(429), answered(400), answered(503, "rate_limited"), ValueError("x")]
)
def test_a_refusal_does_not_leave_the_outcome_open(error):
    assert not errors.is_ambiguous(error)


def test_a_transport_error_of_prime_traces_is_judged_by_its_cause():
    assert not errors.is_ambiguous(caused_by(httpx.ConnectError("x", request=REQUEST)))
    assert errors.is_ambiguous(caused_by(httpx.ReadError("x", request=REQUEST)))


def test_a_transport_error_of_unknown_cause_leaves_the_outcome_open():
    assert errors.is_ambiguous(errors.TransportError("no answer"))


def test_an_explicit_mark_outweighs_every_guess():
    marked = errors.mark_ambiguous(answered(502), ambiguous=False)
    assert not errors.is_ambiguous(pickle.loads(pickle.dumps(marked)))  # noqa: S301 - same line


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejection_of_these_records_is_told_apart(status):
    assert errors.is_record_rejection(answered(status))
    assert not errors.is_refusal(answered(status))


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_refused_account_is_told_apart(status):
    assert errors.is_refusal(answered(status))
    assert not errors.is_record_rejection(answered(status))


def test_a_configuration_error_is_a_value_error():
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.RunFinishedError, RuntimeError)
