"""A verifiers task set and its harness that need no sandbox: the model is all that is asked."""

# ruff: noqa: ARG002, PLR0917 - verifiers' signatures

import os
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

#: By kind of task, what the model is asked; an addition otherwise.
PROMPTS = {"hold": "HOLD", "refused": "REFUSE"}


class ToyData(vf.TaskData):
    kind: str = "add"
    answer: str = ""


class ToyTask(vf.Task[ToyData]):
    @vf.reward(weight=1.0)
    async def correct(self, task: ToyData, trace: vf.Trace) -> float:
        if task.kind == "raise":
            raise RuntimeError("the reward blew up")
        if task.kind == "flaky" and not os.environ.get("TOY_FIXED"):
            raise RuntimeError("the scorer is down")
        if task.kind == "nan":
            return float("nan")
        return float(task.answer in trace.last_reply)

    @vf.metric
    async def reply_len(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["kind"] = self.data.kind
        if self.data.kind == "bytes":
            trace.info["bytes"] = b"\xff\xfe"


class ToyConfig(vf.TasksetConfig):
    #: One task per entry.
    kinds: list[str] = ["add"] * 3


class ToyTaskset(vf.Taskset[ToyTask, ToyConfig]):
    def load(self) -> Iterator[ToyTask]:
        for number, kind in enumerate(self.config.kinds):
            data = ToyData(
                kind=kind,
                name=f"{kind}-{number}",
                prompt=PROMPTS.get(kind, f"What is {number} + 3?"),
                system_prompt="You add.",
                answer="" if kind in PROMPTS else str(number + 3),
            )
            yield ToyTask(data, self.config.task)


class ToyHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        if answer.is_success:
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        return vf.ProgramResult(exit_code=1, stdout="", stderr=f"refused: {answer.status_code}")


__all__ = ["ToyHarness", "ToyTaskset"]
