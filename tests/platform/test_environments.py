import pytest

from prefect_prime.environments import EnvironmentRef, resolve
from prefect_prime.errors import (
    APIError,
    ConfigurationError,
    EnvironmentResolutionError,
    RetryableAPIError,
    TransportError,
    UnauthorizedError,
    is_transient,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gsm8k", EnvironmentRef(name="gsm8k")),
        ("prime/gsm-8k_v2.1+x", EnvironmentRef(owner="prime", name="gsm-8k_v2.1+x")),
        ({"id": "env"}, EnvironmentRef(id="env")),
        ({"id": "env", "version_id": "v1"}, EnvironmentRef(id="env", version_id="v1")),
        ({"name": "gsm8k", "version_id": None}, EnvironmentRef(name="gsm8k")),
        ({"name": "prime/gsm8k"}, EnvironmentRef(owner="prime", name="gsm8k")),
        (
            {"slug": "prime/gsm8k", "version_id": "v1"},
            EnvironmentRef(owner="prime", name="gsm8k", version_id="v1"),
        ),
        ({"id": "env", "name": "gsm8k"}, EnvironmentRef(id="env", name="gsm8k")),
        (EnvironmentRef(name="gsm8k"), EnvironmentRef(name="gsm8k")),
    ],
)
def test_every_form_is_read(value, expected):
    assert EnvironmentRef.parse(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "/",
        "prime/",
        "/gsm8k",
        " gsm8k",
        "gsm 8k",
        "gsm8k\n",
        ".",
        "..",
        "prime/..",
        "a?b",
        "a#b",
        "a%2fb",
        "a\\b",
        "a:b",
        "\u00e4\u2028",
        {},
        {"version_id": "v1"},
        {"name": "a", "slug": "b/c"},
        {"id": ""},
        {"id": 5},
        {"name": "a", "version": "1.2.0"},
        None,
        5,
        ["gsm8k"],
    ],
)
def test_anything_else_is_refused_with_what_to_write(value):
    with pytest.raises(ConfigurationError) as caught:
        EnvironmentRef.parse(value)
    assert str(caught.value).startswith("environment ")


@pytest.mark.parametrize("value", ["prime/gsm8k@1.2.0", "gsm8k@latest"])
def test_a_version_in_the_name_points_to_the_version_id(value):
    with pytest.raises(ConfigurationError, match=r'\{"id": \.\.\., "version_id": \.\.\.\}'):
        EnvironmentRef.parse(value)


def test_a_longer_path_points_to_owner_and_name():
    with pytest.raises(ConfigurationError, match="write 'prime/gsm8k'"):
        EnvironmentRef.parse("prime/gsm8k/extra")


@pytest.mark.parametrize(
    ("value", "expected"), [("gsm8k", "gsm8k"), ("prime/gsm8k", "gsm8k"), ({"id": "env"}, None)]
)
def test_the_data_set_is_the_name_without_its_owner(value, expected):
    assert EnvironmentRef.parse(value).dataset == expected


def test_each_form_is_asked_for_in_its_own_way(scripted, client):
    scripted.script = [
        scripted.Reply(200, {"data": {"id": f"env-{number}"}}) for number in range(3)
    ]
    forms = ["gsm8k", {"slug": "prime/gsm8k", "version_id": "v1"}, {"id": "given"}]
    assert resolve(client, map(EnvironmentRef.parse, forms)) == [
        {"id": "env-0"},
        {"id": "env-1", "version_id": "v1"},
        {"id": "env-2"},
    ]
    assert [asked.path.removeprefix("/api/v1/environmentshub/") for asked in scripted.asked] == [
        "resolve",
        "prime/gsm8k/@latest",
        "lookup",
    ]


@pytest.mark.parametrize("form", ["gsm8k", "prime/gsm8k", {"id": "env"}])
@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_unknown_environment_is_named(scripted, client, form, status):
    scripted.script = [scripted.Reply(status, {"detail": "no such thing"})]
    ref = EnvironmentRef.parse(form)
    with pytest.raises(EnvironmentResolutionError, match="no such thing") as caught:
        resolve(client, [ref])
    assert repr(str(ref)) in str(caught.value)


def test_an_answer_without_an_id_is_an_unknown_environment(scripted, client):
    scripted.script = [scripted.Reply(200, {"data": {}})]
    with pytest.raises(EnvironmentResolutionError, match=r"'gsm8k'.*no id"):
        resolve(client, [EnvironmentRef.parse("gsm8k")])


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ({"status": 503}, RetryableAPIError),
        ({"status": 500}, APIError),
        ({"action": "drop"}, TransportError),
    ],
)
def test_an_outage_stays_transient(scripted, client, reply, kind):
    scripted.script = [scripted.Reply(**reply)]
    with pytest.raises(kind) as caught:
        resolve(client, [EnvironmentRef.parse("gsm8k")])
    assert is_transient(caught.value)


def test_a_refused_key_stays_a_refused_key(scripted, client):
    scripted.script = [scripted.Reply(401)]
    with pytest.raises(UnauthorizedError):
        resolve(client, [EnvironmentRef.parse("gsm8k")])
