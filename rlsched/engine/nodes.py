"""Reports Slurm's nodes to the broker: registrations, heartbeats, and GPUs that other jobs use."""

from __future__ import annotations

import logging

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts, SlurmNode
from rlsched.engine.orders import SlurmKey
from rlsched.engine.partitions import held_by_others
from rlsched.engine.steps import Say
from rlsched.wire.messages import AttemptReport, Capabilities, Heartbeat, Held, Hello, Holding, Welcome
from rlsched.wire.states import ENDED, RUNNING

_log = logging.getLogger("rlsched.engine")
RETRY_S = 1.0


class SlurmNodes:
    """Registers the nodes with the broker, and reports changes of nodes.

    Args:
        desk: State that the parts of the gateway share.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._hello_s: dict[str, float] = {}
        self._beat_s, self._heartbeat_s = -1e9, 2.0
        self._said: dict[str, tuple[str, list[Holding]]] = {}

    def is_exact(self, facts: Facts) -> bool:
        """Return whether each GPU of a node has its own GRES type. Only then can the broker choose GPUs."""
        return all(node.types for node, _ in self._desk.nodes(facts))

    def hellos(self) -> list[Hello]:
        """Return the registration messages of all nodes."""
        assert self._desk.facts is not None
        can = Capabilities(
            exact_gpus=self._desk.places and self.is_exact(self._desk.facts),
            per_node_indices=not self._desk.places,
            preempts=self._desk.preempts,
            clocks=bool(self._desk.sm_clocks_mhz),
            places=self._desk.places,
        )
        held = self.foreign_holdings(self._desk.facts)
        return [
            Hello(
                name=node.name,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
                vc=partition,
                cluster=self._desk.identity,
                epoch=self._desk.epoch,
                attempts=self._reports(node.name),
                unhealthy=self._unusable(node),
                sm_clocks_mhz=list(self._desk.sm_clocks_mhz),
                clocks_note="" if self._desk.sm_clocks_mhz else "its engine is Slurm (--sm-clocks-mhz)",
                capabilities=can,
                engine_away=self._desk.is_away,
                held=held.get(node.name, []),
            )
            for node, partition in self._desk.nodes()
        ]

    def _unusable(self, node: SlurmNode) -> str:
        return "Slurm does not answer" if self._desk.is_away else node.unusable

    def _reports(self, node: str) -> list[AttemptReport]:
        found = []
        for number, attempt in self._desk.attempts.items():
            for rank, name in enumerate(attempt.nodes):
                is_known = attempt.end or attempt.has_run or attempt.is_found or rank in attempt.told
                if name != node or rank in attempt.acknowledged or not is_known:
                    continue
                code, reason, ended_s = attempt.end or (None, "", None)
                found.append(
                    AttemptReport(
                        job=number.job,
                        attempt=number.attempt,
                        rank=rank,
                        state=ENDED if attempt.end else RUNNING,
                        exit_code=code,
                        reason=reason,
                        ended_s=ended_s,
                        sm_clock_mhz=attempt.sm_clock_mhz,
                    )
                )
        return found

    def foreign_holdings(self, facts: Facts) -> dict[str, list[Holding]]:
        """Return, by node name, the GPUs in use by jobs that the broker has not started."""
        return held_by_others(facts, self._desk.at_work() | self._desk.starting)

    def report_changes(self, facts: Facts, *, again: bool = False) -> None:
        """Report whether each node can get jobs, and which of its GPUs other jobs use.

        If `again` is False, only changes are reported.
        """
        if again:
            self._said.clear()
        held = self.foreign_holdings(facts)
        for node, _ in self._desk.nodes(facts):
            if node.name not in self._desk.registered:
                continue
            now = (self._unusable(node), held.get(node.name, []))
            before = self._said.get(node.name)
            if before is None or now[0] != before[0]:
                self._desk.queue_message(node.name, Heartbeat(name=node.name, unhealthy=now[0]))
            if before is None or now[1] != before[1]:
                self._desk.queue_message(node.name, Held(held=now[1]))
            self._said[node.name] = now

    def welcome(self, node: str, welcome: Welcome) -> None:
        """Handle `Welcome`, the broker's answer to a node's registration."""
        self._desk.identity, self._desk.epoch = welcome.cluster, max(welcome.epoch, self._desk.epoch)
        self._heartbeat_s = welcome.heartbeat_s
        for job, attempt in welcome.forget:
            number = SlurmKey(job, attempt)
            self._desk.forgotten.add(number)
            known = self._desk.attempts.pop(number, None)
            if known is not None and known.end is None:
                _log.info("the broker does not know attempt %d.%d: its job is left to Slurm", job, attempt)
        self._desk.registered.add(node)
        self._said.pop(node, None)

    def say_hello_again(self, node: str) -> None:
        """Register a node again, because the broker no longer knows it."""
        self._desk.registered.discard(node)
        self._hello_s.pop(node, None)

    def greet(self, now_s: float) -> None:
        """Register the nodes that the broker has not accepted yet, each at most once per `RETRY_S`."""
        missing = {
            node.name
            for node, _ in self._desk.nodes()
            if node.name not in self._desk.registered
            and now_s - self._hello_s.get(node.name, -1e9) >= RETRY_S
        }
        if missing:
            self._hello_s.update(dict.fromkeys(missing, now_s))
            self._desk.out += [Say(hello.name, hello) for hello in self.hellos() if hello.name in missing]

    def beat_at_once(self) -> None:
        """Make the next heartbeats due now."""
        self._beat_s = -1e9

    def beat(self, now_s: float) -> None:
        """Send the nodes' heartbeats if they are due. A heartbeat also reports whether Slurm answers."""
        if now_s - self._beat_s < self._heartbeat_s / 2:
            return
        self._beat_s = now_s
        for node, _ in self._desk.nodes():
            if node.name in self._desk.registered:
                beat = Heartbeat(
                    name=node.name, unhealthy=self._unusable(node), engine_away=self._desk.is_away
                )
                self._desk.queue_message(node.name, beat)
