"""Latest measurements of nodes, kept only in memory. After a restart, nodes report them within a minute."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from rlsched.broker.nodes.seen_speed import SeenSpeeds
from rlsched.broker.state.bills import JobBill
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.wire.messages import Metered, RankMetered, RankUsage, SeenUsage

MAX_DAY_CHARS = 10
STALE_S = 180.0
"""Age above which measurements of a rank are ignored, seconds."""


class _RankReading(NamedTuple):
    node: str
    at_s: float
    told: RankMetered


class _OfNode(NamedTuple):
    at_s: float
    power_w: float | None
    day: str
    energy_day_j: float | None


class NodeUse(NamedTuple):
    """Use of a node's resources by jobs. A field is None if it was not measured.

    Attributes:
        energy_day_j: Energy of the node's GPUs today (by the node's date), including idle GPUs, joules.
        gpu_frac: Fraction of recent time in which the node's GPUs worked for jobs, mean of all its GPUs.
        cores: Number of CPU cores that jobs keep busy.
        memory_mib: Host memory that jobs use, MiB.
    """

    energy_day_j: float | None = None
    gpu_frac: float | None = None
    cores: float | None = None
    memory_mib: int | None = None


class MeteredUsage:
    """The latest measurements of each rank and node.

    Attributes:
        speeds: Observed speeds of jobs that share GPUs.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.speeds = SeenSpeeds(state)
        self._ranks: dict[tuple[int, int], _RankReading] = {}
        self._nodes: dict[str, _OfNode] = {}
        self._gpu_memory: dict[int, int] = {}  # job -> MiB, see `take_gpu_memory`
        self._latest_s = -math.inf
        self._most = 64  # number of ranks above which ended ranks are removed

    def store_measurements(self, node: str, message: Metered, now_s: float) -> None:
        """Store the measurements that a node reports; ignore implausible values."""
        self._latest_s = now_s
        self._nodes[node] = _OfNode(
            now_s, _positive(message.power_w), message.day[:MAX_DAY_CHARS], _positive(message.energy_day_j)
        )
        for one in message.ranks:
            energy_mj = one.energy_mj if one.energy_mj is not None and one.energy_mj >= 0 else None
            if one.usage.is_sound() and self._is_of(node, one) and energy_mj == one.energy_mj:
                self._note_gpu_memory(one)
                self._ranks[one.job, one.rank] = _RankReading(node, now_s, one)
                self.speeds.store_measurement(one, now_s)
        if len(self._ranks) > self._most:
            self._forget()

    def _note_gpu_memory(self, one: RankMetered) -> None:
        """Record the lower of the GPU memories in a rank's last two reports, for `take_gpu_memory`."""
        before = self._ranks.get((one.job, one.rank))
        if before is None or before.told.attempt != one.attempt:
            return
        mib = min(one.usage.gpu_memory_mib or 0, before.told.usage.gpu_memory_mib or 0)
        self._gpu_memory[one.job] = max(mib, self._gpu_memory.get(one.job, 0))

    def take_gpu_memory(self) -> dict[int, int]:
        """Return the GPU memory that was measured since the last call, MiB on a GPU, by job number.

        The value of a report is the lower of the memory in this report and in the rank's previous report. The
        result is the highest value of all the job's ranks and reports since the last call.
        """
        found, self._gpu_memory = self._gpu_memory, {}
        return found

    def _is_of(self, node: str, one: RankMetered) -> bool:
        job = self._state.jobs.get(one.job)
        active = None if job is None else job.active
        if active is None or active.number != one.attempt or not 0 <= one.rank < len(active.ranks):
            return False
        return active.ranks[one.rank].node == node

    def _forget(self) -> None:
        """Remove the measurements of ranks that have ended."""
        self._ranks = {
            key: found for key, found in self._ranks.items() if self._is_of(found.node, found.told)
        }
        self._most = 2 * len(self._ranks) + 64

    def power_w(self, node: str) -> float | None:
        """Return the power draw of a node's GPUs, W; None if not reported."""
        found = self._nodes.get(node)
        return None if found is None else found.power_w

    def energy_day_j(self) -> float | None:
        """Return the energy that the nodes' GPUs have used today, joules; None if no node reports it.

        Only nodes that report the latest date are included.
        """
        said = [one for one in self._nodes.values() if one.energy_day_j is not None]
        today = max((one.day for one in said), default="")
        known = [one.energy_day_j for one in said if one.day == today and one.energy_day_j is not None]
        return sum(known) if known else None

    def node(self, name: str, now_s: float) -> NodeUse:
        """Return the use of a node's resources by jobs. `now_s`: Unix seconds."""
        node = self._state.nodes[name]
        of_day = self._nodes.get(name)
        energy_day_j = None if of_day is None else of_day.energy_day_j
        gpus_busy, cores, memory_mib = 0.0, 0.0, 0
        any_gpu = any_core = any_memory = False
        for number in node.live_jobs:
            attempt = self._state.jobs[number].active
            for rank, of in enumerate(attempt.ranks if attempt is not None else ()):
                told = self._latest_of_rank(number, attempt, rank, now_s) if of.node == name else None
                if told is None:
                    continue
                if told.usage.gpu_milli is not None:
                    gpus_busy, any_gpu = gpus_busy + len(of.gpus) * told.usage.gpu_milli / 1e3, True
                if told.usage.cpu_milli is not None:
                    cores, any_core = cores + told.usage.cpu_milli / 1e3, True
                if told.usage.memory_mib is not None:
                    memory_mib, any_memory = memory_mib + told.usage.memory_mib, True
        return NodeUse(
            energy_day_j=energy_day_j,
            gpu_frac=gpus_busy / node.spec.gpus if any_gpu and node.spec.gpus else None,
            cores=cores if any_core else None,
            memory_mib=memory_mib if any_memory else None,
        )

    def job(self, job: Job, now_s: float) -> SeenUsage | None:
        """Return the resource use of a job's current or last attempt; None: not measured."""
        attempt = job.attempt
        if attempt is None:
            return None
        if job.active is None:
            return usage_of_ranks(
                [(len(rank.gpus), rank.usage) for rank in attempt.ranks if rank.usage is not None],
                None,
                attempt.energy_j,
            )
        found, energy_mj, at_s = [], [], -math.inf
        for number, rank in enumerate(attempt.ranks):
            told = self._latest_of_rank(job.number, attempt, number, now_s)
            if rank.usage is not None:
                found.append((len(rank.gpus), rank.usage))
                energy_mj.append(rank.usage.energy_mj)
            elif told is not None:
                found.append((len(rank.gpus), told.usage))
                energy_mj.append(told.energy_mj)
                at_s = max(at_s, self._ranks[job.number, number].at_s)
        known = [one for one in energy_mj if one is not None]
        return usage_of_ranks(found, at_s if at_s > -math.inf else None, sum(known) / 1e3 if known else None)

    def outside_mps(self, job: Job, now_s: float) -> list[str]:
        """Return the nodes on which a job should use its GPUs through MPS, but uses them without MPS."""
        ranks = job.active.ranks if job.active is not None else ()
        told = (self._latest_of_rank(job.number, job.active, number, now_s) for number in range(len(ranks)))
        return [
            rank.node for rank, one in zip(ranks, told, strict=True) if one is not None and one.outside_mps
        ]

    def energy_j(self, job: Job, now_s: float) -> float | None:
        """Return the energy of all attempts of a job up to now, joules; None if no node has measured it."""
        used_j = self.attempt_j(job, now_s)
        return job.energy_j if used_j is None else (job.energy_j or 0.0) + used_j

    def bill(self, job: Job, now_s: float) -> JobBill:
        """Return cost and carbon of the energy that a job's attempts used until `now_s`, Unix seconds."""
        return self._state.job_bill(job, self.attempt_j(job, now_s), now_s)

    def attempt_j(self, job: Job, now_s: float) -> float | None:
        """Return the energy of the current attempt, joules; None: no current attempt, or not measured."""
        now = self.job(job, now_s) if job.active is not None else None
        return None if now is None else now.energy_j

    def running_usage(self, now_s: float) -> dict[str, float]:
        """Return the total use of each resource by all measured running jobs, for `StatsReport.used`."""
        found = dict.fromkeys(("gpus", "gpus_busy", "gpu_memory_mib", "cores", "memory_mib"), 0.0)
        for (number, rank), one in self._ranks.items():
            job = self._state.jobs.get(number)
            attempt = None if job is None else job.active
            if attempt is None or self._latest_of_rank(number, attempt, rank, now_s) is None:
                continue
            usage, gpus = one.told.usage, len(attempt.ranks[rank].gpus)
            found["gpus"] += gpus
            found["gpus_busy"] += gpus * (usage.gpu_milli or 0) / 1e3
            found["gpu_memory_mib"] += gpus * (usage.gpu_memory_mib or 0)
            found["cores"] += (usage.cpu_milli or 0) / 1e3
            found["memory_mib"] += usage.memory_mib or 0
        return found if any(found.values()) else {}

    def _latest_of_rank(
        self, job: int, attempt: Attempt | None, rank: int, now_s: float
    ) -> RankMetered | None:
        """Return the latest measurements of rank `rank` of a job's attempt.

        The result is None if there is no attempt, or no measurement that is at most `STALE_S` old.
        """
        found = self._ranks.get((job, rank))
        if found is None or attempt is None or found.told.attempt != attempt.number:
            return None
        return found.told if max(now_s, self._latest_s) - found.at_s <= STALE_S else None


def usage_of_ranks(
    ranks: Iterable[tuple[int, RankUsage]], at_s: float | None, energy_j: float | None
) -> SeenUsage | None:
    """Combine the resource use of a job's ranks. Return None if there are no ranks.

    Args:
        ranks: (number of GPUs, resource use) of each rank.
        at_s: Time of the measurements, Unix seconds; None: all ranks have ended.
        energy_j: Energy of the job, joules; None: not measured.
    """
    found = list(ranks)
    if not found:
        return None

    def mean(field: str) -> float | None:
        """Return the mean of a field, weighted by numbers of GPUs; None if no rank has the field."""
        known = [(gpus or 1, value) for gpus, one in found if (value := getattr(one, field)) is not None]
        return sum(gpus * value for gpus, value in known) / sum(gpus for gpus, _ in known) if known else None

    def frac(field: str) -> float | None:
        value = mean(field)
        return None if value is None else round(value / 1e3, 4)

    def whole(field: str) -> int | None:
        value = mean(field)
        return None if value is None else round(value)

    def of_all(field: str) -> list[int]:
        return [value for _, one in found if (value := getattr(one, field)) is not None]

    cpu_milli, read_mib = of_all("cpu_milli"), of_all("read_mib")
    return SeenUsage(
        at_s=at_s,
        energy_j=energy_j,
        gpu_frac=frac("gpu_milli"),
        gpu_memory_mib=max(of_all("gpu_memory_mib"), default=None),
        sm_active_frac=frac("sm_active_milli"),
        sm_occupancy_frac=frac("sm_occupancy_milli"),
        tensor_frac=frac("tensor_milli"),
        dram_frac=frac("dram_milli"),
        sm_clock_mhz=whole("sm_clock_mhz"),
        power_limited_frac=frac("power_limited_milli"),
        heat_limited_frac=frac("heat_limited_milli"),
        temperature_c=max(of_all("temperature_c"), default=None),
        pcie_mib_s=whole("pcie_mib_s"),
        cores=sum(cpu_milli) / 1e3 if cpu_milli else None,
        throttled_frac=frac("throttled_milli"),
        io_wait_frac=frac("io_wait_milli"),
        read_mib=sum(read_mib) if read_mib else None,
        memory_mib=max(of_all("memory_mib"), default=None),
    )


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0.0 <= value < math.inf else None
