"""The real runs of tests/data that have reference rows and a reference summary."""

import json
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[1] / "data" / "verifiers-runs"
REFERENCE_RUNS = sorted(folder.parent.name for folder in RUNS.glob("*/expected"))


class Run:
    def __init__(self, folder):
        self.lines = [line for line in (folder / "traces.jsonl").read_bytes().split(b"\n") if line]
        self._expected = folder / "expected"

    @property
    def episodes(self):
        return [json.loads(line) for line in self.lines]

    @property
    def rows(self):
        return json.loads((self._expected / "samples.json").read_bytes())

    @property
    def summary(self):
        return json.loads((self._expected / "summary.json").read_bytes())


@pytest.fixture(params=REFERENCE_RUNS)
def reference_run(request):
    return Run(RUNS / request.param)


@pytest.fixture
def clean_episode():
    return Run(RUNS / "clean").episodes[0]


@pytest.fixture
def null_score_episodes():
    return Run(RUNS / "weird-nan").episodes
