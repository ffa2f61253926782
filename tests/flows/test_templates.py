"""A parameter's value fills a template in, and can do no more than that."""

from pathlib import Path

import pytest

from prefect_prime.errors import ConfigurationError
from prefect_prime.flows.options import EvalOptions, plan
from prefect_prime.flows.templates import render, render_path


@pytest.mark.parametrize("value", ["{other}", "{0}", "{", "}}", "{other.__class__}", "%s", "$HOME"])
def test_a_value_is_no_template_itself(value: str) -> None:
    assert render("model", "m-{model}", {"model": value, "other": "seen"}) == f"m-{value}"


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("configs/{x}.toml", "gsm8k", "configs/gsm8k.toml"),
        ("configs/{x}.toml", "prime/gsm8k", "configs/prime/gsm8k.toml"),
        ("configs/{x}.toml", "a/../b", "configs/a/../b.toml"),
        ("../configs/{x}.toml", "gsm8k", "../configs/gsm8k.toml"),
        ("eval-{x}.toml", "m", "eval-m.toml"),
        ("/srv/{x}", "m", "/srv/m"),
        ("{x}", "/anywhere/at/all.toml", "/anywhere/at/all.toml"),
        ("{x}/eval.toml", "..", "../eval.toml"),
        ("eval.toml", "../..", "eval.toml"),
    ],
)
def test_a_path_stays_below_what_stands_before_the_placeholder(
    template: str, value: str, expected: str
) -> None:
    assert render_path("config", template, {"x": value}) == expected


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("configs/{x}.toml", "../secrets"),
        ("configs/{x}.toml", "a/../../secrets"),
        ("configs/a-{x}", "/../../secrets"),
        ("../configs/{x}", "../../secrets"),
        ("../configs/{x}", "../configs-of-others/x"),
        ("eval-{x}.toml", "/../../secrets"),
        ("/srv/{x}", "../etc/passwd"),
    ],
)
def test_a_path_that_a_value_would_lead_out_of_its_folder_is_refused(
    template: str, value: str
) -> None:
    with pytest.raises(ConfigurationError, match="leads out of the folder"):
        render_path("config", template, {"x": value})


def test_a_config_is_not_read_from_where_a_parameter_points(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "secrets.toml").write_text("key = 'geheim'")
    options = EvalOptions(environments=["toy"], config=f"{tmp_path}/configs/{{name}}.toml")
    with pytest.raises(ConfigurationError, match="leads out of"):
        plan(options, {"name": "../secrets"}, "an eval", None)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 5000, "a\nb"])
def test_a_config_s_name_that_no_file_can_have_is_one_clear_error(value: str) -> None:
    options = EvalOptions(environments=["toy"], config="configs/{name}.toml")
    with pytest.raises(ConfigurationError, match=r"^config ") as caught:
        plan(options, {"name": value}, "an eval", None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["../x", "toy/../../evaluations", "a?b=c", "a#b", "a\r\nX-Evil: 1", "a/b/c", ""]
)
def test_an_environment_s_name_is_a_name(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^environment "):
        plan(EvalOptions(environments=["{env}"]), {"env": value}, "an eval", None)


@pytest.mark.parametrize("value", [".", ".."])
def test_an_evaluation_s_id_that_is_no_part_of_a_url_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name or id"):
        plan(EvalOptions(evaluation_id="{evaluation}"), {"evaluation": value}, "an eval", None)
