"""How far an eval is, in the words that the progress artifact, the log and a terminal share."""

import time
from typing import Any

from prefect_prime.flows.progress import Pace, Progress


def progress(**known: Any) -> Progress:
    defaults: dict[str, Any] = {
        "expected": None,
        "attempt": 1,
        "episodes": 0,
        "rate": None,
        "reward": None,
        "rejected": 0,
        "behind": {"traces": 0, "samples": 0},
        "outages": {},
        "arrived": 0.0,
        "online": True,
    }
    return Progress(**{**defaults, **known})


def test_episodes_rate_time_left_and_mean_reward_are_one_line() -> None:
    half = progress(expected=1200, episodes=600, rate=2.5, reward=0.71)

    assert half.line() == "600 of 1,200 episodes · 2.5/s · 4 min 0 s left · mean reward 0.71"
    assert half.percent == 50.0


def test_more_episodes_than_expected_are_no_more_than_all() -> None:
    more = progress(expected=10, episodes=15, rate=1.0)

    assert (more.percent, more.left) == (100.0, None)
    assert "15 of 10 episodes" in more.line()


def test_without_expected_the_bar_is_what_has_arrived_and_says_so() -> None:
    some = progress(episodes=1, arrived=0.25)

    assert some.percent == 25.0
    assert some.line() == "1 episode"
    assert "the bar: what has arrived" in some.description()


def test_before_the_first_episode_nothing_is_made_up() -> None:
    assert progress(expected=10).line() == "0 of 10 episodes"
    assert progress().percent == 0.0


def test_an_outage_says_since_when_and_how_much_is_behind() -> None:
    out = progress(
        behind={"traces": 0, "samples": 1204}, outages={"samples": time.time() - 240}, episodes=1204
    )

    assert "samples: out since " in out.line()
    assert " UTC (4 min 0 s), 1,204 records behind" in out.line()
    assert "traces" not in out.line()
    assert "- samples: out since" in out.description()


def test_what_is_behind_is_told_per_sink() -> None:
    behind = progress(episodes=9, behind={"traces": 1, "samples": 3})

    assert behind.line() == "9 episodes · traces: 1 record behind · samples: 3 records behind"


def test_offline_is_told() -> None:
    assert "offline" in progress(online=False).description()


def test_the_rate_is_that_of_the_last_minute() -> None:
    pace = Pace()

    assert pace.rate(0, 0.0) is None
    assert pace.rate(10, 10.0) == 1.0
    rates = [pace.rate(10 + 5 * step, 10.0 + step) for step in range(1, 200)]
    assert rates[-1] == 5.0
