"""Scripted changes of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.models.catalogue import load_catalogue
from rlsched.models.sharing import stranger_speed
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import NodeEvent
from tests.support.sim.play import trace_of

GPT2, LIGHT, INPUT_BOUND = "gpt2-b4", "a2c-b64", "resnet18-imagenet-b128"
CATALOGUE = load_catalogue()
ONE_V100 = (NodeGroup(gpus=1, gpu_type="V100"),)
NO_NOISE = Models(noise=False)
FREE_RESTARTS = PreemptionCosts(restart_s=0.0, restart_large_s=0.0)


class Script(Scheduler):
    """Plays the given actions at their times."""

    name = policy_id = "script"
    order = Order()
    oracle = True
    abilities = Abilities(preempts=True, shares=True)

    def __init__(self, actions: Mapping[float, Sequence[Action]]) -> None:
        self._actions = {at: list(todo) for at, todo in actions.items()}

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The next action of this time; else wait for the next time."""
        del state, partition, record
        if self._actions.get(now_s):
            return Decision(action=self._actions[now_s].pop(0), source="rule")
        until_s = min((at for at in self._actions if at > now_s), default=None)
        return Decision(action=Wait(until_s=until_s), source="rule")


def play(
    jobs: Sequence[tuple[float, float, float]],
    workloads: Sequence[str],
    actions: Mapping[float, Sequence[Action]],
    *,
    nodes: Sequence[NodeGroup] = ONE_V100,
    events: Sequence[NodeEvent] = (),
    models: Models = NO_NOISE,
    costs: PreemptionCosts | None = FREE_RESTARTS,
    **columns: Sequence[Any],
) -> JobTable:
    trace = trace_of(jobs, workload=list(workloads), **columns)
    engine = Engine(
        trace,
        ClusterSpec(name="hand", nodes=tuple(nodes)),
        order=Order(),
        oracle=True,
        models=models,
        rules=RunRules(costs=costs, node_events=tuple(events)),
    )
    return engine.run(Script(actions))


def trait(name: str, field: str, kind: str = "V100") -> float:
    cell = CATALOGUE.cell(name, kind, field)
    assert cell is not None
    return cell.value


def paired(name: str, other: str) -> float:
    return float(stranger_speed(trait(name, "util_frac"), trait(other, "util_frac")))


def slower(name: str, x: float) -> float:
    rho = trait(name, "clock_bound")
    return float(((rho / x) ** 5 + 1 - rho**5) ** 0.2)


V100 = CATALOGUE.arrays(["V100"]).gpu[0]


def draws(name: str, x: float = 1.0) -> float:
    """Power of a V100 with only this job, W."""
    v = 1 + V100.voltage_slope * (max(x, V100.knee_frac) - 1)
    work = V100.theta / slower(name, x) + (1 - V100.theta) * x
    return float(np.clip(V100.static_w + trait(name, "dynamic_w") * work * v * v, V100.idle_w, V100.tdp_w))
