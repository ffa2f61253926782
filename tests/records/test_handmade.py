"""A rollout without verifiers becomes an episode that verifiers and the platform read."""

import math

import pytest
from verifiers.v1.episode import WireEpisode

from prefect_prime.encoding import decode, encode
from prefect_prime.errors import RecordRejectedError
from prefect_prime.metrics import from_episodes
from prefect_prime.projection import sample_rows
from prefect_prime.records import episode, kind_of, record_id

ASK = {"role": "user", "content": "2 + 2?"}
REPLY = {"role": "assistant", "content": "4"}


def read(record):
    """``record`` as its line holds it, which verifiers' own reader accepts."""
    line = encode(record)
    WireEpisode.model_validate_json(line)
    return decode(line)


def row_of(record):
    [row] = sample_rows(read(record), 1).rows
    return row


def test_messages_alone_make_an_episode():
    record = episode([ASK, REPLY])
    row = row_of(record)

    assert kind_of(record) == "episode"
    assert record_id(record, "episode") == row["sample_id"]
    assert row["completion"] == [ASK, REPLY]
    assert row["reward"] == 0.0
    assert row["error"] is None
    assert row["is_completed"]
    assert row["task"] == {"prompt": "2 + 2?"}
    assert from_episodes([record])["avg_error"] == 0.0


def test_everything_given_is_where_verifiers_has_it():
    record = episode(
        [{"role": "system", "content": "Add."}, ASK, REPLY],
        id="mine",
        example_id=7,
        rewards={
            "correct": 1,
            "short": {"score": 0.5, "weight": 0.2},
            "judge": None,
            "late": {"score": None},
        },
        metrics={"length": 1, "maybe": None},
        answer="4",
        task={"difficulty": "easy"},
        info={"seed": 3},
        environment="owner/math",
        model="org/model",
        agent="solver",
        tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}],
        usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        is_truncated=True,
    )
    row = row_of(record)
    wire = WireEpisode.model_validate(record)
    [trace] = wire.traces

    assert row["sample_id"] == "mine"
    assert row["example_id"] == 7
    assert row["reward"] == trace.reward == 1.1
    assert (row["correct"], row["short"]) == (1.0, 0.5)
    assert row["metrics"] == {"length": 1.0, "maybe": None}
    assert row["answer"] == "4"
    assert row["task"] == {
        "system_prompt": "Add.",
        "prompt": "2 + 2?",
        "difficulty": "easy",
        "answer": "4",
        "idx": 7,
    }
    assert row["info"]["seed"] == 3
    assert row["agent"] == "solver"
    assert row["tool_defs"] == [{"type": "function", "name": "add", "parameters": {}}]
    assert row["token_usage"] == {"prompt_tokens": 9, "completion_tokens": 2}
    assert row["is_truncated"]
    assert trace.is_truncated
    assert wire.env.id == "owner/math"
    assert trace.agent.config.model == "org/model"
    assert record["num_total_tokens"] == wire.num_total_tokens == 11


def test_one_reward_needs_no_name():
    record = episode([ASK, REPLY], rewards=0.5)

    assert row_of(record)["reward"] == 0.5
    assert from_episodes([record])["avg_metrics"] == {"reward": 0.5}


def test_text_names_an_example_durably():
    row = row_of(episode([ASK], example_id="gsm8k/12"))

    assert row["example_id"] == "gsm8k/12"
    assert row["task"]["id"] == "gsm8k/12"


def test_a_reward_that_is_not_finite_is_null_and_left_out_of_the_mean():
    record = episode([ASK, REPLY], rewards=math.nan)
    [row] = sample_rows(decode(encode(record)), 1).rows

    assert row["reward"] is None
    assert from_episodes([record, episode([ASK], rewards=1.0)])["avg_reward"] == 1.0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("no answer", {"type": "Error", "message": "no answer"}),
        ({"type": "Timeout", "message": "60 s"}, {"type": "Timeout", "message": "60 s"}),
        (
            ValueError("bad"),
            {"type": "ValueError", "message": "bad", "traceback": "ValueError: bad\n"},
        ),
    ],
)
def test_a_rollout_that_failed_without_a_message_has_a_row_with_its_error(error, expected):
    record = episode(error=error, example_id=1)
    row = row_of(record)

    assert row["error"] == expected
    assert row["stop_condition"] == "error"
    assert row["completion"] == []
    assert from_episodes([record])["avg_error"] == 1.0


def test_messages_of_the_openai_client_are_understood():
    class Message:
        def model_dump(self, **_options):
            return {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 2}'},
                    }
                ],
            }

    record = episode(
        [
            {"role": "developer", "content": "Add."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
                    {"type": "input_audio", "input_audio": {"data": "x"}},
                ],
            },
            Message(),
            {"role": "tool", "tool_call_id": "c1", "content": {"sum": 4}},
            {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
        ],
        usage={
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    )

    assert row_of(record)["completion"] == [
        {"role": "system", "content": "Add."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:,x"}},
                {"type": "text", "text": '{"type": "input_audio", "input_audio": {"data": "x"}}'},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "name": "add", "arguments": '{"a": 2}'}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 4}'},
        {"role": "assistant", "content": "4"},
    ]
    assert row_of(record)["token_usage"] == {
        "prompt_tokens": 6,
        "cached_input_tokens": 4,
        "completion_tokens": 3,
        "reasoning_tokens": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "needs messages, a reward, a metric or an error"),
        ({"messages": ["hello"]}, r"messages\[0\] is a mapping, not str"),
        ({"messages": [{"role": "robot"}]}, r"messages\[0\] has role 'robot'"),
        ({"messages": [ASK], "rewards": {"r": "high"}}, "r is 'high'; a reward or metric is a"),
        ({"messages": [ASK], "metrics": {"m": [1]}}, r"m is \[1\]; a reward or metric is a number"),
    ],
)
def test_what_is_no_episode_is_refused_with_its_reason(arguments, reason):
    with pytest.raises(RecordRejectedError, match=reason):
        episode(**arguments)
