"""Nodes of the cluster: registration, heartbeats, and jobs that a node still runs when registering again."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterable

from rlsched.broker.base.entries import (
    GpuMemoryLimited,
    GpusHeld,
    JoinsLimited,
    NodeAway,
    NodeDown,
    NodeHealth,
    NodeUp,
)
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.broker.nodes.foreign import ForeignNodes
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.leases import Leases
from rlsched.broker.nodes.metered import MeteredUsage
from rlsched.broker.nodes.settling import Settling
from rlsched.broker.nodes.time_limits import TimeLimits
from rlsched.broker.nodes.unknown_attempts import UnknownAttempts
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.nodes import Node
from rlsched.cluster.arrays import NO_JOINS
from rlsched.cluster.spec import MAX_GPUS_PER_NODE, SHARED_PARTITION
from rlsched.terminal.visible import visible
from rlsched.wire.messages import (
    MAX_CLOCK_SKEW_S,
    AttemptReport,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Holding,
    Refused,
    Welcome,
)
from rlsched.wire.states import ENDED, QUEUED, RUNNING

MOST_OF_NODE = {
    "gpus": MAX_GPUS_PER_NODE,
    "cpus": 1 << 16,
    "memory_mib": 1 << 30,
}
"""Highest values that a node can report, by field. Higher values do not fit into the ledger's arrays."""
MAX_GPU_MIB = 1 << 30
MAX_NAME = 128
MAX_MHZ = 100_000
MAX_NOTES = 8
MAX_HOST_CHARS = 255
MAX_CLOCKS = 1_000
"""Maximum number of SM clocks that a node can report; an H200 has about a hundred."""
_log = logging.getLogger("rlsched.broker")


class Members:
    """The nodes of the cluster: registration, heartbeats and health.

    Attributes:
        metered: Latest measurements of nodes.
        foreign: Nodes that belong to another cluster.
        leases: The leases of nodes.

    Args:
        now_s: Start of the broker, Unix seconds. One lease later, registered nodes get jobs even if other
            nodes have not registered yet (`Settling`).
    """

    def __init__(
        self,
        state: BrokerState,
        attempts: Launches,
        time_limits: TimeLimits,
        leases: Leases,
        limits: Limits,
        out: Outbox,
        now_s: float,
    ) -> None:
        self._state, self._attempts, self._limits = state, attempts, limits
        self.leases = leases
        self._out, self._time_limits = out, time_limits
        self._greeted: set[str] = set()
        self._other_gpus: set[str] = set()
        self.unknown_attempts = UnknownAttempts(state, attempts, out)
        self._settling = Settling(state, out, now_s + limits.lease_s)
        self._clock_skew_s: dict[str, float] = {}
        self._power_w: dict[str, float] = {}
        self.metered = MeteredUsage(state)
        self._later: dict[str, int] = {}
        self._engine_away_s: dict[str, float] = {}  # last heartbeat with `engine_away`, Unix seconds
        self._held: dict[str, list[Holding]] = {}
        self.foreign = ForeignNodes(self._limits.lease_s)

    def later(self, node: str, cluster: str, epoch: int) -> None:
        """Record that a node obeys a later broker of this cluster.

        Args:
            node: Name of the node.
            cluster: ID of the cluster that the node reports. A report of another cluster is ignored.
            epoch: Epoch that the node obeys. An epoch that is not above this broker's is ignored.
        """
        known = self._state.nodes.get(node)
        if known is not None and cluster == self._state.identity and epoch > self._state.epoch:
            self._later[node] = epoch

    def later_epoch(self) -> int:
        """Return the highest epoch of a later broker that nodes report, or 0.

        The result is 0 unless more than half of the nodes report a later broker, so that a job that
        manipulates its node cannot stop this broker.
        """
        if not self._later:
            return 0
        nodes = [name for name, node in self._state.nodes.items() if not node.removed]
        later = [self._later[name] for name in nodes if name in self._later]
        return max(later) if 2 * len(later) > len(nodes) else 0

    def heartbeat(self, node: str, request: int, now_s: float, heartbeat: Heartbeat) -> None:
        """Handle a heartbeat of a registered node."""
        power_w = heartbeat.power_w
        if power_w is not None and 0.0 <= power_w < math.inf:
            self._power_w[node] = power_w
        else:
            self._power_w.pop(node, None)
        self.leases.mark_daemon_started(node)
        self._engine(node, now_s, heartbeat.engine_away)
        self._health(node, heartbeat.unhealthy)
        if request:
            self._out.send(node, HeartbeatAck(), request)

    def power_w(self, node: str) -> float | None:
        """Return the power of a node's GPUs at its last heartbeat, W; None: not reported, or node not up."""
        if self._state.nodes[node].state not in ("up", "drained"):
            return None
        return self._power_w.get(node, self.metered.power_w(node))

    def _health(self, node: str, unhealthy: str) -> None:
        """Record the result of a node's own health checks in the journal, if the result has changed."""
        if not unhealthy and not self._state.nodes[node].unhealthy:
            return
        unhealthy = shortened(visible(unhealthy), MAX_REASON_CHARS)
        if unhealthy != self._state.nodes[node].unhealthy:
            self._out.record(NodeHealth(name=node, unhealthy=unhealthy))

    def _engine(self, node: str, now_s: float, is_away: bool) -> None:
        if is_away:
            self._engine_away_s[node] = now_s

    def engine_back_s(self, node: str, now_s: float) -> float:
        """Return the time since which a node's engine has been reachable, Unix seconds.

        The result is `now_s` if a recent heartbeat reported the engine as unreachable.
        """
        away_s = self._engine_away_s.get(node, 0.0)
        return now_s if now_s - away_s <= 2 * self._limits.heartbeat_s else away_s

    def are_own(self, names: Iterable[str]) -> bool:
        """Return whether all these nodes run rlsched's own engine.

        On other engines, a launch can take long for reasons outside the job.
        """
        return all(self._state.nodes[name].spec.capabilities.is_own for name in names)

    def note_holdings(self, node: str, held: list[Holding]) -> None:
        """Store a node's report of the GPUs that the broker cannot use. `record_holdings` journals it.

        If a GPU is in service again, other jobs may join the jobs on it again.
        """
        self._held[node] = [
            Holding(by=shortened(visible(one.by)), gpus=one.gpus, until_s=one.until_s)
            for one in held[:MAX_GPUS_PER_NODE]
            if one.until_s is None or math.isfinite(one.until_s)
        ]
        number, out = self._state.nodes[node].number, self.held_gpus(node)
        limits = self._state.cluster.join_limits(number)
        back = [gpu for gpu, mib in limits.items() if mib == NO_JOINS and gpu not in out]
        if back:
            self._out.record(JoinsLimited(name=node, most_mib=dict.fromkeys(back)))

    def record_gpu_memory(self, node: str, usable_mib: dict[int, int]) -> None:
        """Journal how much memory of a node's GPUs jobs can get, if it has changed."""
        known = self._state.nodes[node]
        found = {gpu: mib for gpu, mib in sorted(usable_mib.items()) if 0 <= gpu < known.spec.gpus}
        found = {gpu: min(max(mib, 0), MAX_GPU_MIB) for gpu, mib in found.items()}
        if found != self._state.cluster.usable_gpu_memory(known.number):
            self._out.record(GpuMemoryLimited(name=node, usable_mib=found))

    def held_gpus(self, node: str) -> set[int]:
        """Return the indexes of a node's GPUs that it last reported as out of service or in foreign use."""
        return {gpu for one in self._held.get(node, ()) for gpu in one.gpus}

    def record_holdings(self) -> None:
        """Journal which GPUs are out of service or used by foreign jobs, so that no job starts on them.

        If a job of the broker runs on such a GPU, the GPU is journalled only after that job has left it.
        """
        for name in sorted(self._held):
            known = self._state.nodes[name]
            found = self._state.holdings.possible_holdings(name, known, self._held[name])
            if found != self._state.holdings.holdings_of(name):
                self._out.record(GpusHeld(name=name, held=found))

    def mark_leaving(self, node: str) -> None:
        """Record that a node's daemon is being stopped."""
        known = self._state.nodes[node]
        self.leases.mark_daemon_stopped(node)
        if known.up and not known.away and not known.sleep:
            self._out.record(NodeAway(name=node, reason="its daemon was stopped"))

    def hello(self, name: str, hello: Hello, request: int, now_s: float, wall_s: float | None = None) -> None:
        """Register a node, and reconcile the attempts that the node reports with the state.

        `wall_s`: time of receipt by this machine's clock, Unix seconds; compared with the node's clock.
        """
        refusal = self._refusal(name, hello) or self._elsewhere(name, hello, now_s)
        if refusal:
            self._out.send(name, Refused(message=refusal), request)
            return
        if hello.cluster not in ("", self._state.identity):
            self.foreign.hello(name, hello, now_s)
            self._out.send(name, self._greeting([]), request)
            return
        self.foreign.forget(name)
        self.leases.renew(name, now_s)
        self.leases.mark_daemon_started(name)
        self.compare_clocks(name, hello.wall_s, wall_s)
        spec = NodeUp(
            name=name,
            gpus=hello.gpus,
            gpu_type=hello.gpu_type,
            gpu_uuids=hello.gpu_uuids,
            cpus=hello.cpus,
            memory_mib=hello.memory_mib,
            vc=hello.vc,
            boot_id=hello.boot_id,
            sm_clocks_mhz=sorted(hello.sm_clocks_mhz, reverse=True),
            clocks_note=hello.clocks_note,
            directory_id=hello.directory_id,
            notes=[shortened(visible(note), MAX_REASON_CHARS) for note in hello.notes[:MAX_NOTES]],
            host=shortened(visible(hello.host), MAX_HOST_CHARS),
            capabilities=hello.capabilities,
        )
        known = self._state.nodes.get(name)
        if known is not None and known.is_other(hello) and self._state.holdings.holdings_of(name):
            self._out.record(GpusHeld(name=name, held=[]))
        if known is not None and known.is_other(hello) and self._busy(known):
            self._refuse_changed(name, hello, request)
            return
        rebooted = known is not None and known.spec.boot_id != hello.boot_id
        goes_off = known is not None and known.up and bool(known.sleep) and now_s < known.off_s
        if not goes_off and (
            known is None
            or known.state in ("unreachable", "down", "asleep", "waking")
            or known.spec != spec
            or name not in self._greeted
        ):
            self._out.record(spec)
        self._health(name, hello.unhealthy)
        self._engine(name, now_s, hello.engine_away)
        holdings, limits = self._state.holdings, self._state.cluster.join_limits
        if (
            hello.held
            or name in self._held
            or holdings.holdings_of(name)
            or limits(self._state.nodes[name].number)
        ):
            self.note_holdings(name, hello.held)
        self._greeted.add(name)
        theirs = hello.attempts if hello.cluster == self._state.identity else []
        unknown_attempts = self.unknown_attempts.register_reports(name, theirs)
        reports = self._welcome(name, hello, request, unknown_attempts)
        current = {(report.job, report.attempt) for report in reports}
        self._missing(name, current, rebooted=rebooted)
        for report in reports:
            self._report(name, report, rebooted=rebooted)
        self._settling.drain_until_settled(name, now_s)
        self.launch_restored(now_s)

    def launch_restored(self, now_s: float) -> None:
        """After a restore, launch the attempts that wait until all nodes have registered.

        Do nothing while a node is awaited, or if an earlier call has launched the attempts.
        """
        if self.unknown_attempts.finish_registration(now_s):
            self._launch_again()

    def _launch_again(self) -> None:
        """Order each registered node to start its ranks that do not run yet, for all current attempts."""
        for name in sorted(self._greeted):
            for number in sorted(self._state.nodes[name].live_jobs):
                job = self._state.jobs[number]
                if job.active is not None and not job.active.ending:
                    self._attempts.launch(job, node=name)

    def clock_skew_s(self, node: str) -> float | None:
        """Return by how much a node's clock was ahead of the broker's, seconds; None if not reported."""
        return self._clock_skew_s.get(node)

    def compare_clocks(self, name: str, theirs_s: float | None, ours_s: float | None) -> None:
        """Record by how much a node's clock is ahead. Warn when the difference first exceeds the limit.

        Args:
            name: The node.
            theirs_s: The node's time when it sent the message, Unix seconds; None if not reported.
            ours_s: This machine's time on arrival, Unix seconds.
        """
        before_s = self._clock_skew_s.pop(name, 0.0)
        if theirs_s is None or ours_s is None or not math.isfinite(theirs_s):
            return
        skew_s = self._clock_skew_s[name] = theirs_s - ours_s
        if abs(skew_s) > MAX_CLOCK_SKEW_S >= abs(before_s):
            direction = "ahead of" if skew_s > 0 else "behind"
            _log.warning(
                "node %s: its clock is %.1f s %s the clock of the broker's machine; run NTP on both "
                "(`timedatectl`). Times that the node's jobs write are wrong by this difference; run times "
                "are right",
                name,
                abs(skew_s),
                direction,
                extra={"node": name},
            )

    def _welcome(
        self, name: str, hello: Hello, request: int, unknown_attempts: Container[tuple[int, int]] = ()
    ) -> list[AttemptReport]:
        """Send `Welcome` to a node, with the outdated attempts that the node must remove.

        Args:
            name: Name of the node.
            hello: The node's `Hello`.
            request: ID of the node's request.
            unknown_attempts: (job, attempt) of attempts that are not in the journal and that the node must
                keep.

        Returns:
            The reports in `hello` about current attempts.
        """
        reports = [report for report in hello.attempts if self._attempts.current(name, report.key)]
        current = {(report.job, report.attempt) for report in reports}
        reported = {(report.job, report.attempt) for report in hello.attempts}
        forget = {one for one in reported - current if one not in unknown_attempts}
        self._out.send(name, self._greeting(sorted(forget)), request)
        return reports

    def _greeting(self, forget: list[tuple[int, int]]) -> Welcome:
        return Welcome(
            epoch=self._state.epoch,
            cluster=self._state.identity,
            heartbeat_s=self._limits.heartbeat_s,
            forget=forget,
            hears_power=True,
            hears_clock=True,
            hears_limits=True,
            hears_usage=True,
            hears_output=True,
            hears_memory=True,
        )

    def _refusal(self, name: str, hello: Hello) -> str:
        """Return the reason why this node is not allowed to register; "" if it is allowed."""
        if hello.name != name:
            return f"this key belongs to node {name!r}, not to {hello.name!r}; use the key of {hello.name!r}"
        for field, most in MOST_OF_NODE.items():
            value = getattr(hello, field)
            if not 0 <= value <= most:
                return f"node {name}: {field} must be 0 to {most:g}, got {value:g}"
        for field in ("gpu_type", "vc", "boot_id", "directory_id", "cluster"):
            if len(getattr(hello, field)) > MAX_NAME:
                return f"node {name}: {field} must have {MAX_NAME} characters at most"
        clocks = hello.sm_clocks_mhz
        if len(clocks) > MAX_CLOCKS or not 1 <= min(clocks, default=1) <= max(clocks, default=1) <= MAX_MHZ:
            return (
                f"node {name}: expected up to {MAX_CLOCKS} SM clocks of 1 to {MAX_MHZ} MHz, got "
                f"{len(clocks)}, from {min(clocks)} to {max(clocks)}"
            )
        unlike = self._unlike(name, hello)
        if unlike is not None:
            return (
                f"node {name} has {hello.gpus} GPUs, {unlike.spec.name} has {unlike.spec.gpus}: an engine "
                "that uses the same GPU numbers on all nodes of a gang needs nodes with equal numbers of "
                "GPUs; give the two nodes different VCs"
            )
        if hello.vc == SHARED_PARTITION:
            return (
                f"node {name}: {hello.vc!r} cannot be the name of a virtual cluster; "
                "omit --vc for a node that serves all VCs"
            )
        if hello.cluster == self._state.identity and hello.epoch > self._state.epoch:
            self.later(name, hello.cluster, hello.epoch)
            return (
                f"node {name} obeys broker epoch {hello.epoch}, this broker has epoch {self._state.epoch}: "
                "another broker has a later journal; if this journal was copied back from a backup, stop "
                "the broker and use `rlsched journal restore`, which raises the epoch"
            )
        return ""

    def _unlike(self, name: str, hello: Hello) -> Node | None:
        """Return a node with which this node cannot share a partition; None if there is no such node.

        If the engine of either node needs equal GPU indexes on all nodes of a gang, both must have the same
        GPU count.
        """
        if not hello.gpus:
            return None
        for other in self._state.nodes.values():
            spec = other.spec
            if spec.gpus == hello.gpus or not spec.gpus:  # true of most nodes
                continue
            if hello.capabilities.per_node_indices and spec.capabilities.per_node_indices:
                continue
            if spec.vc == hello.vc and spec.name != name and not other.removed:
                return other
        return None

    def _refuse_changed(self, name: str, hello: Hello, request: int) -> None:
        """Handle a node that registers with other GPUs while jobs run on its earlier GPUs.

        The node's jobs are ended and queued again, because the GPU indexes may have changed. The node can
        register when these jobs have ended.
        """
        node = self._state.nodes[name]
        why = f"node {name} came back with {hello.gpus} GPUs, and had {node.spec.gpus}"
        if node.has_other_instances(hello) and hello.gpus == node.spec.gpus:
            why = f"node {name} came back with other MIG instances"
        if node.up:
            self._out.record(NodeDown(name=name, reason=why))
        reports = self._welcome(name, hello, request)
        told = {(report.job, report.attempt) for report in reports}
        for number in sorted(node.live_jobs):
            job = self._state.jobs[number]
            if job.active is not None and (number, job.active.number) not in told:
                self._attempts.record_loss(name, job, why)
        for report in reports:
            self._report(name, report)
            self._attempts.end(self._state.jobs[report.job], QUEUED, why, charged=False)
        self._other_gpus.add(name)

    def returning(self) -> list[str]:
        """Return nodes whose GPUs have changed, and that can register again, because their jobs have ended.

        Later calls do not return the same nodes again, unless their GPUs change again.
        """
        ready = [name for name in sorted(self._other_gpus) if not self._busy(self._state.nodes[name])]
        self._other_gpus.difference_update(ready)
        return ready

    def _busy(self, node: Node) -> bool:
        return bool(node.live_jobs or self._state.cluster.jobs_on(node.number))

    def _elsewhere(self, name: str, hello: Hello, now_s: float) -> str:
        """Return why a daemon with another directory (`--dir`) is refused, in one line; "" if accepted.

        Such a daemon does not know the ranks of the node's earlier daemon. It is accepted only if the earlier
        daemon is silent and none of these ranks can still run.
        """
        node = self._state.nodes.get(name)
        theirs = node.spec.directory_id if node else ""
        if node is None or not theirs or not hello.directory_id or theirs == hello.directory_id:
            return ""
        silence_s = self.leases.silence_s(name, now_s)
        if node.state in ("up", "drained") and silence_s < self._limits.lease_s:
            return (
                f"node {name} already has a daemon, in another directory; stop that daemon, or use another "
                "--name"
            )
        jobs = sorted(node.live_jobs) if node.spec.boot_id == hello.boot_id else []
        fenced = {job.number: job.spec.lost_after_s for job in self._state.fenced_jobs(node)}
        unfenced = [job for job in jobs if job not in fenced]
        wait_s = max(fenced.values(), default=0.0) - silence_s
        if not unfenced and (not jobs or wait_s <= 0):
            return ""
        until = "for as long as they run" if unfenced else f"for {wait_s:.0f} s more"
        return (
            f"jobs {', '.join(map(self._state.called, unfenced or jobs))} of node {name} may still run, "
            f"started from another directory ({until}); start the daemon with that --dir, cancel these jobs, "
            "or remove the node"
        )

    def _missing(self, name: str, reported: set[tuple[int, int]], *, rebooted: bool) -> None:
        """Handle each attempt that should be on this node but that the node did not report.

        An attempt that is being ended gets the order to end again. A running attempt is given up. A starting
        attempt is launched again, unless the node was rebooted: the attempt may have run, and is given up.
        While nodes are awaited after a restore, no attempt is launched again.

        Args:
            name: Name of the node.
            reported: (job, attempt) of each attempt that the node reported.
            rebooted: Whether the node was rebooted since its previous registration.
        """
        gone = "was rebooted" if rebooted else "came back without it"
        for number in sorted(self._state.nodes[name].live_jobs):
            job = self._state.jobs[number]
            attempt = job.active
            if attempt is None or (number, attempt.number) in reported:
                continue
            if attempt.ending:
                self._attempts.kill(job)
            elif rebooted or any(rank.node == name and rank.state == RUNNING for rank in attempt.ranks):
                self._attempts.record_loss(name, job, f"node {name} {gone}")
            elif self.unknown_attempts.is_settling:
                continue  # the attempt may have begun on another node since the backup
            else:
                self._attempts.launch(job, node=name)

    def _report(self, name: str, report: AttemptReport, *, rebooted: bool = False) -> None:
        """Handle an attempt that a node reports at registration.

        The report has the effect of the message that the broker may have missed: `Ended` or `Launched`.
        """
        if report.state == ENDED:
            self._attempts.record_rank_end(name, report.as_ended(), rebooted=rebooted)
            return
        job = self._state.jobs[report.job]
        if job.active is not None and job.active.ending:
            self._attempts.kill(job, node=name)
        else:
            self._attempts.launched(name, report.as_launched())
            self._attempts.hold_clock(job, node=name)
            self._time_limits.note_enforced(job, report.attempt, report.rank, report.limit_s)
