"""Evals that are killed at a random moment, then retried or reconciled; what is left is counted.

Each seed is one flow run: some records, one to three deaths by SIGKILL of the process that runs
the eval (or that reconciles it), and an end by a retry that lives or by ``reconcile``. Half of
the seeds run against a platform that is healthy, half against ones that meet every fault that
there is, one of which takes no status from a producer. The invariants hold over all of them:

- every record whose log call had returned is in the run's last evaluation, in each sink
- none is there twice
- no evaluation shows RUNNING, and each flow run has one evaluation per generation
- the evaluation's own account of its records is what is there
- the last evaluation is COMPLETED where the flow run is
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from faulty_proxy import Fault, FaultyProxy
from killed_eval import killed_eval
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL
from prefect.states import Scheduled
from support import Evaluations

from prefect_prime.endings import CLOSED
from prefect_prime.local import LocalPlatform
from prefect_prime.local.rules import StatusUpdates
from prefect_prime.records import episode
from prefect_prime.spool import store

#: A kill comes at one of so many requests to the platform (an eval sends about ten), or so
#: many seconds after it at most.
LATEST_REQUEST = 9
LATEST_KILL = 0.3
#: The share of requests that meet a fault, on the faulty platform.
FAULT_RATE = 0.12
#: Each as often as the others; what is late is processed within the settle time.
FAULTS: tuple[Fault, ...] = (
    "429 before",
    "429 retry-after=1",
    "500 before",
    "500 after",
    "502 before",
    "502 after",
    "502 late 0.3",
    "503 before",
    "504 after",
    "reset before",
    "reset after",
    "reset late 0.3",
    "html before",
    "html after",
    "truncated",
    "slow 0.3",
    "refuse 0.5",
    "restart 0.5",
)
#: The kinds of platform, in the order of their totals.
NAMES = ("healthy platform", "faulty platform", "faulty, takes no status")
#: Seconds after which a run without an owner counts as dead.
ORPHANED_AFTER = 0.5
#: Seconds that a process may take: it waits out a few faults at most.
TIME_OUT = 120.0


@dataclass
class Totals:
    """What the harness found. ``problems`` says which records and runs, a line each."""

    runs: int = 0
    attempts: int = 0
    reconciles: int = 0
    kills: int = 0
    faults: int = 0
    records: int = 0
    generations: int = 0
    lost: int = 0
    duplicated: int = 0
    left_running: int = 0
    wrong_status: int = 0
    wrong_sums: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self).items() if value != [])


@dataclass(frozen=True)
class Kill:
    """A process dies of its n-th request to the platform: before that is processed, or after
    and before it is answered, or some time later (``seconds``).
    """

    request: int
    processed: bool
    seconds: float | None = None

    @classmethod
    def at_random(cls, chance: random.Random) -> "Kill":
        request = chance.randint(1, LATEST_REQUEST)
        if chance.random() < 0.4:
            return cls(request, processed=True, seconds=chance.uniform(0.0, LATEST_KILL))
        return cls(request, processed=chance.random() < 0.5)


class Starter:
    """One process that forks others; see ``killed_eval``."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("killed_eval.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        #: The process that runs now, and what is known of its death.
        self._pid: int | None = None
        self._kill: Kill | None = None
        self._requests = 0
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()
        self._answer()

    def run(self, order: dict[str, Any], kill: Kill | None) -> int:
        """Have an order obeyed to its end, or to the kill; its exit status."""
        assert self._process.stdin is not None
        with self._lock:
            self._kill, self._requests = kill, 0
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        with self._lock:
            self._pid = int(self._answer())
        self._die_after(TIME_OUT)
        status = int(self._answer())
        with self._lock:
            self._pid = None
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
        if kill is None:
            assert status == 0, f"{order} ended with {status}"
        return status

    def requested(self, *, processed: bool) -> bool:
        """A request has come, or was processed; whether its sender dies of it."""
        with self._lock:
            self._requests += not processed
            kill = self._kill
            if kill is None or (kill.request, kill.processed) != (self._requests, processed):
                return False
        if kill.seconds is not None:
            self._die_after(kill.seconds)
            return False
        self._die()
        return True

    def _die_after(self, seconds: float) -> None:
        with self._lock:
            if self._pid is not None:
                self._timers.append(threading.Timer(seconds, self._die))
                self._timers[-1].start()

    def _die(self) -> None:
        with self._lock:
            if self._pid is not None:
                with suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(self._pid, signal.SIGKILL)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the starter has died"
        return line

    def close(self) -> None:
        self._process.communicate(timeout=30)


class World:
    """One platform, healthy or behind the proxy, with a spool store of its own."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        faulty: bool,
        seed: int,
        status_updates: StatusUpdates = "accept",
    ) -> None:
        self.name = name
        self.faulty = faulty
        self._status_updates = status_updates
        self.folder = folder / name
        self.folder.mkdir()
        self.totals = Totals()
        self.flow_runs: dict[str, tuple[UUID, Path]] = {}
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.platform = self._stack.enter_context(
            LocalPlatform(self.folder / "platform", status_updates=self._status_updates)
        )
        self._proxy = self._stack.enter_context(FaultyProxy(self.platform))
        self._starter = Starter(self._environment())
        self._stack.callback(self._starter.close)
        self._proxy.decide = self._fault
        self._proxy.processed = lambda _method, _path: self._processed()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _environment(self) -> dict[str, str]:
        credentials = self._proxy.credentials
        return {
            **os.environ,
            "PREFECT_API_URL": PREFECT_API_URL.value() or "",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
            "PRIME_API_KEY": credentials.api_key.get_secret_value(),
            "PRIME_API_BASE_URL": credentials.base_url,
            "PRIME_TRACES_URL": credentials.traces_url or "",
            "PREFECT_PRIME_SPOOL_DIR": str(self.folder / "spool"),
            "PREFECT_PRIME_SEGMENT_AGE": "0.2",
        }

    def _processed(self) -> None:
        self._starter.requested(processed=True)

    def _fault(self, _method: str, _path: str) -> Fault | None:
        if self._starter.requested(processed=False):
            return "reset before"
        with self._lock:
            if not self.faulty or self._chance.random() > FAULT_RATE:
                return None
            self.totals.faults += 1
            return self._chance.choice(FAULTS)

    # -- the runs ----------------------------------------------------------------

    def run(self, seeds: Sequence[int]) -> None:
        """Run each seed, and reconcile what is left."""
        for seed in seeds:
            self._one(seed)
        self.faulty = False
        for _ in range(2):  # twice: the second finds nothing to do
            self._reconcile("last", None)

    def _one(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - no secret
        name = f"{self.name}-{seed}"
        folder = self.folder / name
        folder.mkdir()
        records = [record(name, number) for number in range(chance.randint(5, 25))]
        (folder / "records.json").write_text(json.dumps(records))
        pace = chance.choice([0.0, 0.02, 0.06])
        with get_client(sync_client=True) as client:
            flow_run = client.create_flow_run(
                killed_eval,
                name=name,
                parameters={"name": name, "folder": str(folder), "pace": pace},
                state=Scheduled(),
            )
        self.flow_runs[name] = (flow_run.id, folder)
        self.totals.runs += 1
        segment_bytes = chance.choice(["4000", "99999"])
        deaths, retried = chance.randint(1, 2), chance.random() < 0.6
        spool = store.owner_folder(self.folder / "spool", flow_run.id)
        for death in range(1, deaths + 1):
            self._attempt(flow_run.id, folder, segment_bytes, Kill.at_random(chance))
            if chance.random() < 0.15:  # somebody reconciles, and may die of it
                self._reconcile(name, chance.choice([None, Kill.at_random(chance)]))
            state = state_of(flow_run.id)
            if state.is_final() and not spool.exists():
                return  # it was quicker than its death
            if death == deaths and not retried and not state.is_scheduled():
                return  # reconcile is to finish it
            self._retry(flow_run.id)
        self._attempt(flow_run.id, folder, segment_bytes, None)

    def _attempt(
        self, flow_run_id: UUID, folder: Path, segment_bytes: str, kill: Kill | None
    ) -> None:
        order = {
            "do": "eval",
            "flow_run": str(flow_run_id),
            "log": str(folder / "log"),
            "env": {"PREFECT_PRIME_SEGMENT_BYTES": segment_bytes},
        }
        self._note("attempts", self._starter.run(order, kill))

    def _reconcile(self, name: str, kill: Kill | None) -> None:
        order = {
            "do": "reconcile",
            "orphaned_after": ORPHANED_AFTER,
            "log": str(self.folder / f"reconcile-{name}.log"),
            "env": {},
        }
        self._note("reconciles", self._starter.run(order, kill))

    def _note(self, what: str, status: int) -> None:
        setattr(self.totals, what, getattr(self.totals, what) + 1)
        self.totals.kills += status == -signal.SIGKILL

    def _retry(self, flow_run_id: UUID) -> None:
        """As ``prefect flow-run retry`` does, also for a run that still shows Running."""
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run_id, Scheduled(message="Retried"), force=True)

    # -- the invariants -------------------------------------------------------------

    def check(self) -> Totals:
        """Count what is lost, there twice, left open or closed wrongly."""
        with self.platform.credentials.get_client() as client:
            evaluations = Evaluations(client)
            everything = client.list_evaluations(limit=1000)["evaluations"]
            for name, (flow_run_id, folder) in self.flow_runs.items():
                mine = [each for each in everything if each["name"] == name]
                self._check_run(evaluations, name, flow_run_id, folder, mine)
        return self.totals

    def _check_run(
        self,
        evaluations: Evaluations,
        name: str,
        flow_run_id: UUID,
        folder: Path,
        mine: list[dict[str, Any]],
    ) -> None:
        journal = folder / "journal"
        logged = set(journal.read_text().split()) if journal.exists() else set()
        generations = [generation(each, flow_run_id) for each in mine]
        if any(status_of(each) not in CLOSED for each in mine):
            self.totals.left_running += 1
            self._problem(f"{name} is left RUNNING, its flow run is {state_of(flow_run_id)!r}")
        self.totals.records += len(logged)
        self.totals.generations += len(mine)
        if len(set(generations)) < len(generations):
            self.totals.left_running += 1
            self._problem(f"{name} has two evaluations of a generation: {generations}")
        if not mine:
            self.totals.lost += len(logged)
            if logged:
                self._problem(f"{name} has no evaluation, and logged {len(logged)} records")
            return
        last = max(mine, key=lambda each: generation(each, flow_run_id))
        stored = {
            "samples": Counter(row["sample_id"] for row in evaluations.rows(last["id"])),
            "traces": Counter(self._episodes(last["id"])),
        }
        for sink, ids in stored.items():
            if lost := logged - set(ids):
                self.totals.lost += len(lost)
                self._problem(f"{name} lost {len(lost)} of {len(logged)} in {sink}: {sorted(lost)}")
            if twice := sorted(each for each, count in ids.items() if count > 1):
                self.totals.duplicated += len(twice)
                self._problem(f"{name} has {len(twice)} twice in {sink}: {twice}")
        if state_of(flow_run_id).is_completed() and status_of(last) != "COMPLETED":
            self.totals.wrong_status += 1
            self._problem(f"{name} is {last['status']}, and its flow run is Completed")
        self._check_sums(name, last, stored)

    def _check_sums(self, name: str, last: dict[str, Any], stored: dict[str, Counter[str]]) -> None:
        for sink, counts in last["metadata"]["prefect"]["records"].items():
            there = stored[sink].total()
            if counts != {"stored": there, "failed": 0, "skipped": 0, "pending": 0}:
                self.totals.wrong_sums += 1
                self._problem(f"{name} says of {sink} {counts}, and there are {there}")

    def _episodes(self, evaluation_id: str) -> Iterator[str]:
        with self.platform.credentials.get_traces_client() as client:
            cursor = None
            while True:
                page = client.list(run_id=evaluation_id, limit=100, cursor=cursor)
                yield from (item.trace_id.removesuffix("-trace") for item in page.items)
                cursor = page.next_cursor
                if cursor is None:
                    return

    def _problem(self, line: str) -> None:
        self.totals.problems.append(line)


def state_of(flow_run_id: UUID) -> State[Any]:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state
    assert state is not None
    return state


def status_of(evaluation: dict[str, Any]) -> str:
    """The status; where the platform takes none from a producer, that of the metadata."""
    record = evaluation["metadata"].get("prime_runs") or {}
    return str(record["status"] if record.get("status_refused") else evaluation["status"])


def generation(evaluation: dict[str, Any], flow_run_id: UUID) -> int:
    prefix = f"prefect-flow-run:{flow_run_id}:"
    (tag,) = [tag for tag in evaluation["tags"] if tag.startswith(prefix)]
    return int(tag.removeprefix(prefix))


def record(name: str, number: int) -> dict[str, Any]:
    """The same record whenever it is made."""
    made = episode([{"role": "user", "content": "?" * 300}], rewards=1.0, example_id=number)
    (trace,) = made["traces"]
    identity = f"{name}-{number:03d}"
    return {**made, "id": identity, "traces": [{**trace, "id": f"{identity}-trace"}]}


def run_all(seeds: int, folder: Path, *, first: int = 0) -> list[Totals]:
    """Run so many seeds, half against a healthy platform; needs a Prefect server."""
    numbers = range(first, first + seeds)
    healthy = World("healthy", folder, faulty=False, seed=first)
    faulty = World("faulty", folder, faulty=True, seed=first)
    no_status = World("no-status", folder, faulty=True, seed=first, status_updates="ignore")
    worlds = {healthy: numbers[::2], faulty: numbers[1::4], no_status: numbers[3::4]}
    with ExitStack() as stack:
        for world in worlds:
            stack.enter_context(world)
        with ThreadPoolExecutor(len(worlds)) as pool:
            list(pool.map(World.run, worlds, worlds.values()))
        return [world.check() for world in worlds]
