"""How the demo's outcome looks in a terminal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from prefect_prime.flows.result import EvalResult

#: Cells of a bar that stands for 1.0.
_BAR = 24


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One evaluation as the platform has it, and how it got there.

    ``rows`` are its samples, ``uploads`` answered requests by sink, ``first_upload`` seconds
    after the start. ``flow_run_url`` is None where its page will not stay up.
    """

    evaluation: Mapping[str, Any]
    result: EvalResult
    rows: int
    uploads: Mapping[str, int]
    first_upload: float | None
    seconds: float
    flow_run_url: str | None

    @property
    def whole(self) -> bool:
        """Whether the evaluation is closed and nothing of it is missing."""
        return self.evaluation["status"] == "COMPLETED" and not self.missing

    @property
    def missing(self) -> str:
        """What did not arrive, in words."""
        parts = [
            f"{count} {kind} of the {sink} sink"
            for sink, losses in self.result.losses.items()
            for kind, count in losses.items()
            if count
        ]
        if self.result.rejected:
            parts.append(f"{self.result.rejected} rejected")
        return ", ".join(parts)


def print_head(console: Console) -> None:
    """What this is."""
    console.print(
        "\n[bold]prefect-prime[/]: an LLM evaluation as a tracked Prefect run\n"
        "[dim]On this machine alone: an embedded platform and a Prefect server, both new.\n"
        "No account is needed, and none of your settings is used.[/]\n"
    )


def print_evaluation(console: Console, shown: Shown) -> None:
    """One evaluation: where it is, how it ended, its metrics, what was sent where."""
    evaluation = shown.evaluation
    colour = "green" if shown.whole else "red"
    heading = f"[bold]{escape(str(evaluation['name']))}[/]  [{colour}]{evaluation['status']}[/]"
    console.print()
    console.rule(heading, align="left", style="dim")
    metrics = evaluation.get("metrics") or shown.result.summary
    rows = [*_told(shown), *_metrics(metrics), *_sent(shown, metrics)]
    width = 2 + max(len(label) for label, _ in rows)
    for label, text in rows:  # no table: it would break a long URL
        console.print(f"{escape(label):{width}}{text}", soft_wrap=True)


def _told(shown: Shown) -> Iterator[tuple[str, str]]:
    evaluation, result = shown.evaluation, shown.result
    failed = round(result.episodes * float(result.summary["avg_error"]))
    yield "page", f"[cyan]{result.url}[/]"
    if shown.flow_run_url is not None:
        yield "flow run", f"[cyan]{shown.flow_run_url}[/]"
    yield "model", escape(str(evaluation["model_name"]))
    yield "episodes", f"[bold]{result.episodes}[/], {failed} of them with an error"
    config = evaluation["metadata"].get("config_source")
    if config is not None:
        yield "config", f"{escape(config['filename'])}, byte for byte"


def _metrics(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "avg_reward", _bar(metrics["avg_reward"])
    for name, value in metrics["avg_metrics"].items():
        yield f"  {name}", _bar(value)
    yield "avg_error", _bar(metrics["avg_error"], "red")


def _bar(value: float, colour: str = "green") -> str:
    if not 0 <= value <= 1:
        return f"{value:.3f}"
    full = round(value * _BAR)
    return f"{value:.3f}  [{colour}]{'█' * full}[/][dim]{'░' * (_BAR - full)}[/]"


def _sent(shown: Shown, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    written = metrics.get("prime_runs", {}).get("traces_episodes_written", 0)
    traces, samples = shown.uploads["traces"], shown.uploads["samples"]
    yield "traces", f"{written} episodes to Prime Traces, in {_counted(traces, 'upload')}"
    yield "samples", f"{shown.rows} rows to the evaluation, in {_counted(samples, 'request')}"
    if shown.missing:
        yield "missing", f"[red]{shown.missing}[/]"
    first = shown.first_upload
    streamed = "" if first is None else f", the first upload {first:.1f} s after the start"
    yield "time", f"{shown.seconds:.1f} s{streamed}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_next_steps(
    console: Console, *, seconds: float, platform_url: str | None, prefect_url: str | None
) -> None:
    """What to look at and to try now. The URLs are those of pages that stay up, if any do."""
    console.print(f"\nAll of it took {seconds:.0f} s.\n")
    console.rule("[bold]What to try next[/]", align="left", style="dim")
    if platform_url is None:
        console.print(
            "The pages above end with this command. To walk through them, and through Prefect's:\n"
            "  [bold]make demo SERVE=1[/]  [dim]or  python -m prefect_prime.flows.demo --serve[/]\n"
        )
    console.print(
        "An eval of your own is a function with one decorator:\n"
        '  [cyan]@eval_flow[/](environments=\\["my-env"], model="{model}")\n'
        "  [cyan]def[/] nightly(model: str):\n"
        "      [cyan]for[/] task [cyan]in[/] tasks:\n"
        "          [cyan]yield[/] rollout(model, task)\n\n"
        "A run that is finished already, a directory of verifiers or a JSONL file:\n"
        "  [bold]python -m prefect_prime.flows.upload[/] outputs/my-run\n"
    )
    if platform_url is not None:
        console.print(
            "These pages stay up until [bold]Ctrl-C[/]:\n"
            f"  evaluations  [cyan]{platform_url}[/]\n"
            f"  flow runs    [cyan]{prefect_url}/runs[/]\n",
            soft_wrap=True,
        )
