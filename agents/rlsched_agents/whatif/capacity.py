"""Computes the spare capacity of a cluster: nodes that could sleep, and GPUs that are not needed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.models.node_power import PowerByState
from rlsched.power_down.minutes import replay_states
from rlsched.power_down.plan import PowerDownPlan
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import PowerDown
from rlsched.workload.load import partition_sizes, scaled_to_nodes
from rlsched.workload.predict.node_demand import SLOT_S
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.evaluate.pairs import DAY_S
from rlsched_agents.whatif.recorded import Mask
from rlsched_envs.sim.job_table import JobTable


class SleepPotential(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that could sleep while they are idle (`rlsched.power_down`).

    Attributes:
        nodes: Number of nodes.
        asleep: Mean number of sleeping nodes.
        wake_ups_a_day: Number of wake-up events (instants at which nodes are woken) per day.
        node_minutes_short_a_day: Node-minutes per day that jobs lack because nodes still boot.
    """

    nodes: int
    asleep: float
    wake_ups_a_day: float
    node_minutes_short_a_day: float


class Fewer(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest cluster that suffices under the best policy.

    On this cluster under the best policy, the mean wait is at most the mean wait on the full cluster under
    the site's rule.

    Attributes:
        nodes: Number of nodes.
        gpus: Number of GPUs.
        gpus_spared: Number of GPUs of the full cluster that the smallest cluster does not have.
        wait_s: Mean wait on this smallest cluster, seconds.
    """

    nodes: int
    gpus: int
    gpus_spared: int
    wait_s: float


def sleep(table: JobTable, since_s: float) -> SleepPotential | None:
    """Compute how many nodes could have slept in a replay under the default `PowerDownPlan`.

    The highest demand within ten minutes is used for all ten minutes, so waits for booting nodes are
    overestimated.

    Args:
        table: Result of the replay.
        since_s: Start of the measured time, seconds of the trace; the forecast of demand starts a day
            earlier.

    Returns:
        None if the replay has not recorded the GPUs of jobs, or if the measured time is shorter than a day.
    """
    attempts = table.attempts
    over = np.flatnonzero(np.isfinite(attempts.end_s) & (attempts.end_s > since_s - DAY_S))
    spans: dict[str, list[tuple[float, float]]] = {}
    for attempt in over.tolist():
        gpus = attempts.gpu[attempts.gpu_at[attempt] : attempts.gpu_at[attempt + 1]]
        span = float(attempts.start_s[attempt]), float(attempts.end_s[attempt])
        for node in np.unique(table.gpu_node[gpus]).tolist():
            spans.setdefault(f"n{node}", []).append(span)
    until_s = float(table.trace.submit_s[-1])
    if not spans or until_s - since_s < DAY_S:
        return None
    nodes = table.spec.num_nodes
    busy = NodeDemand.of_spans(spans, nodes).rows_between(since_s - DAY_S, until_s).slots()
    time_s = since_s - DAY_S + SLOT_S * np.arange(len(busy), dtype=np.float64)
    series = NodeDemand(time_s, busy, nodes)
    service: PowerDown = PowerDownPlan().services([nodes])[0]
    found = replay_states(series, service, PowerByState.from_gpus(), since_s)
    return SleepPotential(
        nodes=nodes,
        asleep=found.nodes_asleep,
        wake_ups_a_day=found.wake_up_events / found.days,
        node_minutes_short_a_day=found.node_minutes_short / found.days,
    )


def fewer(
    cluster: ClusterSpec,
    replay: Callable[[ClusterSpec], JobTable],
    measured: Mask,
    most_wait_s: float,
    tell: Callable[[float], None],
) -> Fewer | None:
    """Find the smallest cluster on which the mean wait is at most `most_wait_s`, by bisection.

    Args:
        cluster: The full cluster.
        replay: Replays the policy on a cluster.
        measured: (J,) mask of the measured jobs. A cluster on which one of them does not start is too small.
        most_wait_s: Largest permitted mean wait, seconds: the mean wait under the site's rule on the full
            cluster.
        tell: Called with the progress, 0 to 1.

    Returns:
        None if the mean wait is longer even on the full cluster.
    """
    found: Fewer | None = None
    low, high = max(1, len(partition_sizes(cluster))) - 1, cluster.num_nodes
    steps = max(1, int(high - low).bit_length())
    done = 0
    at = high
    while True:
        tell(min(done / (steps + 1), 1.0))
        spec = scaled_to_nodes(cluster, at)
        table = replay(spec)
        wait_s = float(np.nan_to_num(queue_s(table)[measured], nan=np.inf).mean())
        if wait_s <= most_wait_s:
            high = at
            found = Fewer(
                nodes=spec.num_nodes,
                gpus=spec.num_gpus,
                gpus_spared=cluster.num_gpus - spec.num_gpus,
                wait_s=wait_s,
            )
        elif at == cluster.num_nodes:
            return None
        else:
            low = at
        done += 1
        if high - low <= 1:
            return found
        at = (low + high) // 2
