"""Two agents on the toy tasks: a solver, and a critic that is not trained."""

import verifiers.v1 as vf


class ToyMultiConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig(max_turns=2)
    #: "half" fails when the solver is done; "empty" asks nobody.
    mode: str = "ok"


class ToyMultiEnv(vf.Env[ToyMultiConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.critic.trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if self.config.mode == "empty":
            return
        solved = await agents.solver.run(task)
        if self.config.mode == "half":
            raise RuntimeError("the critic never started")
        prompt = f"Judge this reply: {solved.last_reply}"
        await agents.critic.run(vf.Task(vf.TaskData(idx=task.data.idx, prompt=prompt)))


__all__ = ["ToyMultiEnv"]
