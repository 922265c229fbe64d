"""What a cluster could do without: nodes that sleep, and GPUs that need not be bought."""

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


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that could sleep while no job is on them (`rlsched.power_down`).

    Attributes:
        nodes: There are so many.
        asleep: Mean number of them asleep.
        wake_ups_a_day: How often any are woken.
        node_minutes_short_a_day: Nodes that jobs wait for while they boot, times minutes.
    """

    nodes: int
    asleep: float
    wake_ups_a_day: float
    node_minutes_short_a_day: float


class Fewer(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest cluster on which a policy lets jobs wait no longer than the site's rule does on all of it.

    Attributes:
        nodes: Its nodes.
        gpus: Its GPUs.
        gpus_spared: Those that are not there.
        wait_s: Mean wait there.
    """

    nodes: int
    gpus: int
    gpus_spared: int
    wait_s: float


def sleep(table: JobTable, since_s: float) -> Sleep | None:
    """Put nodes to sleep as the default plan does; None where placements or the time are not known.

    By slots of ten minutes, each with its highest demand: what jobs wait for nodes is rather too much.

    Args:
        table: A replay.
        since_s: What is before it warms up the forecast.
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
    busy, total, _ = NodeDemand.of_spans(spans, nodes).between(since_s - DAY_S, until_s).slots()
    time_s = since_s - DAY_S + SLOT_S * np.arange(len(busy), dtype=np.float64)
    series = NodeDemand(time_s, busy, total, has_calendar=False)
    service: PowerDown = PowerDownPlan().services([nodes])[0]
    found = replay_states(series, service, PowerByState.of(), since_s)
    return Sleep(
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
    """Halve the range between no node and all of them; None: on all of them jobs wait longer.

    Args:
        cluster: All nodes.
        replay: The policy's replay on another cluster.
        measured: Jobs whose wait counts; all of them have to end.
        most_wait_s: What the site's rule makes of them on all nodes.
        tell: Told how far it is.
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
