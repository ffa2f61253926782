"""The run directory of a verifiers evaluation, written as verifiers writes it.

``configs/eval.toml`` is the launched file, ``configs/resolved/eval.json`` what it came to,
``traces.jsonl`` an episode a line, as each ends. So ``vf-eval``'s own tools read it, and a
run that died goes on in it. Beside them ``prefect.json`` says which flow run wrote last, and a
lease, for as long as one writes, keeps every other out.

A directory is entered again only under the identical config: other rollouts would not compare.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from prefect_prime.errors import ConfigurationError
from prefect_prime.eval_config import LaunchedEval
from prefect_prime.spool.lease import Lease

if TYPE_CHECKING:
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.task import Task

_TRACES: Final = "traces.jsonl"
_OWNER: Final = "prefect.json"
#: How a run is called, shown and logged makes no other rollouts.
_ONLY_SHOWN: Final = frozenset({"run", "push", "rich", "verbose"})
_LOG_FORMAT: Final = "%(asctime)s %(levelname)7s %(message)s"


@dataclass(frozen=True)
class _Row:
    """One whole line of the file of episodes."""

    id: str
    task_hash: str | None
    offset: int
    size: int


class EvalDirectory:
    """Where one evaluation's rollouts are kept. ``flow_run`` is who wants to write there."""

    def __init__(self, launched: LaunchedEval, flow_run: str | None) -> None:
        from verifiers.v1.cli.output import output_path  # noqa: PLC0415 - an extra

        self._launched = launched
        self._config: EvalConfig = launched.config
        self._flow_run = flow_run
        self.path = Path(output_path(self._config))
        self.traces = self.path / _TRACES

    # -- may we? -------------------------------------------------------------------

    def check(self, planned: int) -> None:
        """Raise ``ConfigurationError`` where this run may not write; nothing is touched.

        Refused is what was written under another config, and a run of somebody else's that
        is finished (it has ``planned`` episodes), unless ``clean`` or ``resume`` is set.
        """
        if not self._has_results() or self._is_cleaned():
            if self._is_cleaned():
                self._require_child()
            return
        if changed := self._changed():
            raise ConfigurationError(
                f"the run directory {self.path} was written under another config: it differs in"
                f" {', '.join(changed)}. Its rollouts would not be comparable: give this run a"
                " name of its own (run.name), or overwrite that one with overrides={'clean': True}"
            )
        finished = sum(1 for _ in self._rows()) >= planned
        if finished and not self._is_ours() and not self._config.resume:
            raise ConfigurationError(
                f"the run directory {self.path} already contains results, of a run that is"
                " finished: give this run a name of its own (run.name) or none at all, overwrite"
                " that one with overrides={'clean': True}, or run what ended with an error there"
                " again with overrides={'resume': True}"
            )

    def _has_results(self) -> bool:
        return self.traces.exists() and self.traces.stat().st_size > 0

    def _is_cleaned(self) -> bool:
        return bool(self._config.clean) and not self._config.resume and not self._is_ours()

    def _is_ours(self) -> bool:
        """Whether it was this very flow run that wrote last: an earlier attempt."""
        try:
            owner = json.loads((self.path / _OWNER).read_bytes())
        except (OSError, ValueError):
            return False
        return self._flow_run is not None and owner.get("flow_run_id") == self._flow_run

    def _require_child(self) -> None:
        folder, path = self._config.output_dir.resolve(), self.path.resolve()
        if path == folder or not path.is_relative_to(folder):
            raise ConfigurationError("clean requires run.dir to name a child of output_dir")

    def _changed(self) -> list[str]:
        """The settings in which the directory's config differs from this run's."""
        from verifiers.v1.cli.output import saved_config_path  # noqa: PLC0415 - an extra

        saved_path = saved_config_path(self.path)
        if saved_path is None:
            raise ConfigurationError(
                f"the run directory {self.path} holds results without the config that made them"
            )
        try:
            saved = type(self._config).model_validate_json(saved_path.read_text())
        except (OSError, ValueError, TypeError, AttributeError, ModuleNotFoundError):
            return [f"all of {saved_path.name}, which is no config of this verifiers"]
        before, now = (each.model_dump(mode="json") for each in (saved, self._config))
        return [
            key
            for key in sorted(before.keys() | now.keys())
            if key not in _ONLY_SHOWN and before.get(key) != now.get(key)
        ]

    # -- writing -------------------------------------------------------------------

    @contextmanager
    def entered(self, planned: int) -> Iterator[None]:
        """Hold the directory against every other writer. Raises as ``check`` does."""
        self.path.mkdir(parents=True, exist_ok=True)
        lease = Lease.take(self.path)
        if lease is None:
            raise ConfigurationError(f"the run directory {self.path} is in use by another run")
        try:
            self.check(planned)
            if self._is_cleaned():
                self._clean()
            with self._logged():
                yield
        finally:
            (self.path / "lease").unlink(missing_ok=True)
            lease.release()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Keep verifiers' own log of this attempt, in the place where its command has it."""
        from verifiers.v1.cli.output import create_attempt_log_dir  # noqa: PLC0415 - an extra

        log = logging.getLogger("verifiers.v1")
        handler = logging.FileHandler(create_attempt_log_dir(self.path) / "eval.log")
        handler.setFormatter(logging.Formatter(_LOG_FORMAT))
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if self._config.verbose else logging.INFO)
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeHandler(handler)
            handler.close()

    def _clean(self) -> None:
        for path in self.path.iterdir():
            if path.name != "lease":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def plan(
        self, tasks: list["Task"], complete: Callable[[Any], bool]
    ) -> list[tuple["Task", int]]:
        """Begin the directory, or go on in it; each task with the rollouts that it is owed.

        Of an earlier attempt of this flow run everything is kept that is recorded, because it
        was logged then, with its errors. Of anybody else's, what ``complete`` accepts, as
        ``vf-eval --resume`` does. What is not kept leaves the file.
        """
        from verifiers.v1.utils.eval import plan_rollouts  # noqa: PLC0415 - an extra

        if not self._has_results():
            self._begin()
        ours = self._is_ours()
        rows = [row for row in self._rows() if ours or self._is_complete(row, complete)]
        recorded = [
            SimpleNamespace(row=row, id=row.id, task=SimpleNamespace(hash=row.task_hash))
            for row in rows
            if row.task_hash is not None
        ]
        plan = plan_rollouts(tasks, self._config.num_rollouts, recorded)
        self._rewrite([each.row for _, kept, _ in plan for each in kept])
        return [(task, owed) for task, _, owed in plan if owed]

    def _begin(self) -> None:
        from verifiers.v1.cli.output import write_config  # noqa: PLC0415 - an extra

        write_config(self._config, self.path)
        launched = self._launched.metadata["config_source"]
        if launched["format"] == "toml":
            (self.path / "configs" / "eval.toml").write_bytes(launched["text"].encode())
        self.traces.write_bytes(b"")

    def own(self, evaluation_id: str | None) -> None:
        """Note whose the directory is from now on."""
        owner = {"flow_run_id": self._flow_run, "evaluation_id": evaluation_id}
        _replace(self.path / _OWNER, json.dumps(owner, indent=2).encode() + b"\n")

    # -- the episodes ------------------------------------------------------------------

    def _rows(self) -> Iterator[_Row]:
        """The whole lines that are episodes; a torn one is owed again."""
        offset = 0
        with self.traces.open("rb") as lines:
            for line in lines:
                row = _parsed(line)
                if row is not None:
                    task = row.get("task")
                    hashed = task.get("hash") if isinstance(task, dict) else None
                    yield _Row(str(row["id"]), hashed, offset, len(line))
                offset += len(line)

    def _line(self, row: _Row) -> bytes:
        with self.traces.open("rb") as file:
            file.seek(row.offset)
            return file.read(row.size)

    def _is_complete(self, row: _Row, complete: Callable[[Any], bool]) -> bool:
        from verifiers.v1.episode import WireEpisode  # noqa: PLC0415 - an extra

        try:
            return complete(WireEpisode.model_validate_json(self._line(row)))
        except Exception:  # noqa: BLE001 - as verifiers does: what its reader refuses is owed again
            return False

    def _rewrite(self, rows: list[_Row]) -> None:
        rows = sorted(rows, key=lambda row: row.offset)
        partial = self.traces.with_suffix(".jsonl.tmp")
        with partial.open("wb") as file:
            for row in rows:
                file.write(self._line(row).rstrip(b"\n") + b"\n")
        partial.replace(self.traces)

    def kept(self) -> Iterator[Any]:
        """The episodes in the file, one at a time: as verifiers reads it, else as it is."""
        from verifiers.v1.episode import WireEpisode  # noqa: PLC0415 - an extra

        for row in list(self._rows()):
            line = self._line(row)
            try:
                yield WireEpisode.model_validate_json(line)
            except ValueError:
                yield json.loads(line)  # a reward that was no number is null there


def _parsed(line: bytes) -> dict[str, Any] | None:
    """An episode's row; None for a torn or blank line, and for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and "traces" in row and "id" in row else None


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
