"""The nodes: registering, coming back with what they still run, and leases."""

from __future__ import annotations

from collections.abc import Callable

from rlsched.broker.attempts import Attempts
from rlsched.broker.book import Book
from rlsched.broker.entries import Entry, NodeUp
from rlsched.broker.limits import Limits
from rlsched.cluster.spec import MAX_GPUS_PER_NODE, SHARED_PARTITION
from rlsched.wire.messages import AttemptReport, BrokerToNode, Hello, Refused, Welcome

MAX_CLOCKS = 1_000
"""SM clocks that a node may say it can set; an H200 has about a hundred."""


class Members:
    """Who is part of the cluster, and who is alive.

    Args:
        book: What is known.
        attempts: The launch protocol.
        limits: The broker's times.
        note: Makes a fact true and journals it.
        send: Tells a node, with the number of the request that is answered.
        now_s: When the broker started: nodes that the journal has as up have a whole lease to come back.
    """

    def __init__(
        self,
        book: Book,
        attempts: Attempts,
        limits: Limits,
        note: Callable[[Entry], None],
        send: Callable[[str, BrokerToNode, int], None],
        now_s: float,
    ) -> None:
        self._book, self._attempts, self._limits = book, attempts, limits
        self._note, self._send = note, send
        self._started_s = now_s
        self._seen_s: dict[str, float] = {}
        self._greeted: set[str] = set()

    def seen(self, node: str, now_s: float) -> None:
        """A message came from this node."""
        self._seen_s[node] = now_s

    def seen_s(self, node: str) -> float:
        """When a node was heard of last, Unix seconds."""
        return self._seen_s.get(node, self._started_s)

    def rested(self, now_s: float) -> list[str]:
        """Nodes that were drained for long enough."""
        nodes = self._book.nodes.items()
        return [name for name, node in nodes if node.drained and now_s >= node.drained_until_s]

    def expired(self, now_s: float) -> list[str]:
        """Nodes that are up, or still have ranks to tell of, but whose lease is over."""
        return [
            name
            for name, node in self._book.nodes.items()
            if (node.up or node.live_jobs) and now_s - self.seen_s(name) >= self._limits.lease_s
        ]

    def hello(self, name: str, hello: Hello, request: int, now_s: float) -> None:
        """Register a node, and bring what it reports and what the book has into line."""
        refusal = self._refusal(name, hello)
        if refusal:
            self._send(name, Refused(message=refusal), request)
            return
        self.seen(name, now_s)
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
        )
        known = self._book.nodes.get(name)
        if known is None or not known.up or known.spec != spec or name not in self._greeted:
            self._note(spec)
        self._greeted.add(name)
        ours = hello.cluster in ("", self._book.identity)
        reports = [report for report in hello.attempts if ours and self._is_current(name, report)]
        current = {(report.job, report.attempt) for report in reports}
        forget = {(report.job, report.attempt) for report in hello.attempts} - current
        self._send(
            name,
            Welcome(
                epoch=self._book.epoch,
                cluster=self._book.identity,
                heartbeat_s=self._limits.heartbeat_s,
                forget=sorted(forget),
            ),
            request,
        )
        self._missing(name, current)
        for report in reports:
            self._report(name, report)

    def _refusal(self, name: str, hello: Hello) -> str:
        """Why this node cannot register, "" if it can."""
        if hello.name != name:
            return f"this key belongs to node {name!r}, not to {hello.name!r}; use the key of {hello.name!r}"
        if not 0 <= hello.gpus <= MAX_GPUS_PER_NODE:
            return f"node {name}: gpus must be 0 to {MAX_GPUS_PER_NODE}, got {hello.gpus}"
        if len(hello.sm_clocks_mhz) > MAX_CLOCKS or min(hello.sm_clocks_mhz, default=1) < 1:
            return (
                f"node {name}: expected up to {MAX_CLOCKS} SM clocks above 0 MHz, got "
                f"{len(hello.sm_clocks_mhz)}, the lowest {min(hello.sm_clocks_mhz)}"
            )
        if hello.vc == SHARED_PARTITION:
            return (
                f"node {name}: {hello.vc!r} cannot be the name of a virtual cluster; "
                "leave --vc out for a node that serves every one"
            )
        if hello.cluster == self._book.identity and hello.epoch > self._book.epoch:
            return (
                f"node {name} obeys broker epoch {hello.epoch}, this broker's is {self._book.epoch}: "
                "its journal is older than that of another broker"
            )
        known = self._book.nodes.get(name)
        if known and (known.spec.gpus, known.spec.vc) != (hello.gpus, hello.vc):
            return (
                f"node {name} registered with {known.spec.gpus} GPUs for VC {known.spec.vc!r}, now with "
                f"{hello.gpus} for {hello.vc!r}; give it another --name"
            )
        return ""

    def _is_current(self, node: str, report: AttemptReport) -> bool:
        return self._attempts.current(report.job, report.attempt, report.rank, node) is not None

    def _missing(self, name: str, reported: set[tuple[int, int]]) -> None:
        """Ranks that should be here and were not reported: launch, end again, or give up."""
        for number in sorted(self._book.nodes[name].live_jobs):
            job = self._book.jobs[number]
            attempt = job.active
            if attempt is None or (number, attempt.number) in reported:
                continue
            if attempt.ending:
                self._attempts.kill(job)
            elif any(rank.node == name and rank.state == "running" for rank in attempt.ranks):
                self._attempts.lost(name, job, f"node {name} came back without it")
            else:
                self._attempts.launch(job, node=name)

    def _report(self, name: str, report: AttemptReport) -> None:
        if report.state == "ended":
            self._attempts.ended(
                name,
                report.job,
                report.attempt,
                report.rank,
                report.exit_code or 0,
                report.reason,
                report.ended_s,
            )
            return
        job = self._book.jobs[report.job]
        if job.active is not None and job.active.ending:
            self._attempts.kill(job, node=name)
        else:
            self._attempts.launched(name, report.job, report.attempt, report.rank, 0, report.sm_clock_mhz)
            self._attempts.hold_clock(job, node=name)
