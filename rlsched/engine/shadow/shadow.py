"""Advances a shadow from one query of Slurm to the next: passes the events in between to a `Machine`.

The `Machine` is a broker's state machine. Its orders are not carried out; starts and ends come from Slurm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from rlsched.broker.events import ClientAsked, Due, Effect, Event, NodeSaid, SendNode, Tick
from rlsched.broker.machine.machine import Machine
from rlsched.engine.facts import Facts
from rlsched.engine.shadow.follows import Begun, Follows
from rlsched.engine.shadow.mirror import BEHIND_S, STEP_S, Followed, Mirror, News
from rlsched.transport.roles import Peer
from rlsched.wire.messages import AttemptReport, Cancel, Ended, Heartbeat, Held, Holding, Launch, Launched
from rlsched.wire.states import REJECTED, RUNNING

_log = logging.getLogger("rlsched.engine")


class Shadow:
    """Follows a Slurm cluster with a broker's state machine.

    Args:
        machine: A broker's state machine, with `follows` as its scheduler.
        follows: Returns the starts by Slurm.
        mirror: Finds the events in facts.
        commit: Carries out the machine's effects; returns when decisions are durable.
    """

    def __init__(
        self,
        machine: Machine,
        follows: Follows,
        mirror: Mirror,
        commit: Callable[[Sequence[Effect], float], None],
    ) -> None:
        self._machine, self._follows, self._mirror, self._commit = machine, follows, mirror, commit
        self._peer = Peer("engine", mirror.name)
        self._since_s = machine.state.now_s  # time of the last facts, also before a restart
        self._greeted: set[str] = set()
        self._held: dict[str, list[Holding]] = {}
        self._late: set[str] = set()

    def follow_facts(self, facts: Facts, forgets_after_s: float) -> None:
        """Handle new facts (the state of Slurm at one query).

        Args:
            facts: The facts.
            forgets_after_s: Time for which Slurm keeps ended jobs, seconds. After a longer gap between two
                facts, events are missing, and the policy makes no decisions for the gap.
        """
        has_gap = facts.now_s - self._since_s > forgets_after_s
        since_s = facts.now_s if not self._since_s else self._since_s
        if has_gap:
            self._follows.watches_from_s = max(self._follows.watches_from_s, facts.now_s - BEHIND_S)
        news = self._mirror.news(facts, since_s)
        first_s = min([facts.now_s - BEHIND_S, *(one.at_s - STEP_S for one in news)])
        self._follows.known_gpus = _known_gpus(facts)
        self._step(self._nodes_before(facts, news), first_s)
        self._adopt(news, facts)
        self._step([*self._nodes_after(facts), Tick()], facts.now_s - BEHIND_S)
        self._give_up()
        self._since_s = facts.now_s

    # ---- nodes ------------------------------------------------------------------------------------

    def _nodes_before(self, facts: Facts, news: Sequence[News]) -> list[Event]:
        """Return the events of nodes that are processed before the events of jobs.

        The events are registrations, heartbeats, and changes of the GPUs in use by jobs that the shadow does
        not follow.
        """
        said: list[Event] = []
        held = self._mirror.unfollowed_holdings(facts, news)
        for name, (node, partition) in self._mirror.nodes(facts).items():
            if name not in self._greeted:
                self._greeted.add(name)
                said.append(NodeSaid(name, 0, self._mirror.hello(node, partition, self._reports(name))))
            elif not node.unusable:
                said.append(NodeSaid(name, 0, Heartbeat(name=name)))
            if held.get(name, []) != self._held.get(name, []):
                said.append(NodeSaid(name, 0, Held(held=held.get(name, []))))
        self._held = held
        return said

    def _reports(self, name: str) -> list[AttemptReport]:
        """Return a report of each attempt that runs on a node, from the broker's state.

        Such attempts exist if the shadow was restarted: the state then comes from its journal.
        """
        state = self._machine.state
        known = state.nodes.get(name)
        jobs = [state.jobs[number] for number in sorted(known.live_jobs)] if known is not None else []
        return [
            AttemptReport(job=job.number, attempt=job.active.number, rank=rank, state=RUNNING)
            for job in jobs
            if job.active is not None
            for rank in job.active.live_ranks()
            if job.active.ranks[rank].node == name
        ]

    def _nodes_after(self, facts: Facts) -> list[Event]:
        """Return a heartbeat of each node. The heartbeat of an unusable node contains the reason.

        The heartbeats are processed after the events of jobs, because Slurm may have started jobs before a
        node became unusable.
        """
        nodes = self._mirror.nodes(facts)
        said = [
            Heartbeat(name=name, unhealthy=nodes[name][0].unusable if name in nodes else "not in Slurm")
            for name in sorted(self._greeted)
        ]
        return [NodeSaid(one.name, 0, one) for one in said]

    # ---- jobs -------------------------------------------------------------------------------------

    def _adopt(self, news: Sequence[News], facts: Facts) -> None:
        """Process events by time; at each instant: ends, arrivals, the policy's decisions, Slurm's starts."""
        sizes = {partition: node.gpus for node, partition in self._mirror.nodes(facts).values()}
        left = list(news)
        while left:
            at_s = self._time(left[0].at_s)
            due, left = _due(left, at_s)
            events = [event for one in due for event in self._events(one, sizes, at_s)]
            self._step(events, at_s)

    def _events(self, one: News, sizes: dict[str, int], at_s: float) -> Iterator[Event]:
        """Yield the events to pass to the broker's state machine for an event of a job in Slurm.

        A start in Slurm is passed to `Follows` instead.
        """
        followed = self._mirror.followed.get(one.key)
        if one.kind == "came" and one.job is not None:
            submit = self._mirror.submission(one.job, sizes[self._mirror.vc_of(one.job)])
            self._mirror.followed[one.key] = Followed(submit.token)
            yield ClientAsked(b"", 0, submit, self._peer)
        elif one.kind == "began" and one.job is not None and followed is not None:
            followed.start_s = one.job.start_s
            self._follows.begun.append(Begun(one.job, followed.token))
        elif followed is not None:
            yield from self._record_end(one, followed, at_s)

    def _record_end(self, one: News, followed: Followed, at_s: float) -> Iterator[Event]:
        job = self._machine.state.job_of_token(followed.token)
        goes_on = one.end[1] == "node_stopped"
        followed.start_s = None
        if not goes_on:
            self._mirror.forget(one.key, is_over=one.job is None or one.job.is_over)
        self._follows.begun = [begun for begun in self._follows.begun if begun.job.key != one.key]
        if job is None:
            return
        if job.active is not None:
            code, reason = one.end
            for rank in job.active.live_ranks():
                ended = Ended(
                    job=job.number,
                    attempt=job.active.number,
                    rank=rank,
                    exit_code=code,
                    reason=reason,
                    ended_s=min(one.at_s, at_s),
                )
                yield NodeSaid(job.active.ranks[rank].node, 0, ended)
        elif job.live and not goes_on:
            yield ClientAsked(b"", 0, Cancel(job=job.number), self._peer)

    def _give_up(self) -> None:
        """Stop following jobs that the ledger cannot represent.

        The start of such a job was impossible at two queries in a row, or the broker rejected the job.
        """
        waiting, self._late = self._late, {begun.job.key for begun in self._follows.begun}
        events: list[Event] = []
        for key in sorted(self._late & waiting):
            followed = self._mirror.followed.get(key)
            job = None if followed is None else self._machine.state.job_of_token(followed.token)
            _log.info("Slurm's job %s is not compared: the ledger cannot represent its placement", key)
            self._mirror.give_up(key, "not started as requested, or started on GPUs of other jobs")
            self._follows.begun = [begun for begun in self._follows.begun if begun.job.key != key]
            if job is not None and job.live:
                events.append(ClientAsked(b"", 0, Cancel(job=job.number), self._peer))
        for key, followed in list(self._mirror.followed.items()):
            job = self._machine.state.job_of_token(followed.token)
            if job is None or job.state == REJECTED:
                self._mirror.give_up(key, "never fits" if job is not None else "cannot be submitted")
        if events:
            self._step(events, 0.0)

    # ---- time -------------------------------------------------------------------------------------

    def _time(self, wanted_s: float) -> float:
        """Return `wanted_s`, or the time of the `Machine` + `STEP_S` if that is later; rounded to 1 ms."""
        return round(max(wanted_s, self._machine.now_s + STEP_S), 3)

    def _step(self, events: Sequence[Event], wanted_s: float) -> None:
        due_s = self._machine.due_s()
        if self._machine.now_s < due_s < self._time(wanted_s):  # a broker decides exactly at the due time
            self._handle([Due()], due_s)
        at_s = self._time(wanted_s)
        if self._follows.begun:
            self._machine.ask_next()
        self._handle([*events, Due()] if due_s <= at_s else events, at_s)

    def _handle(self, events: Sequence[Event], at_s: float) -> None:
        effects = self._machine.handle_batch(events, at_s)
        self._commit(effects, at_s)
        launched = [
            NodeSaid(one.node, 0, Launched(job=order.job, attempt=order.attempt, rank=order.rank, pid=0))
            for one in effects
            if isinstance(one, SendNode) and isinstance(order := one.message, Launch)
        ]
        if launched:
            self._handle(launched, self._time(at_s))


def _known_gpus(facts: Facts) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for job in facts.jobs.values():
        for node, gpus in zip(job.nodes, job.gpus, strict=False):
            found.setdefault(node, set()).update(gpus)
    return found


def _due(news: list[News], at_s: float) -> tuple[list[News], list[News]]:
    """Split events into (events up to `at_s`, all other events).

    The first part ends earlier if it would otherwise contain both the start and the end of a job.
    """
    began: set[str] = set()
    for place, one in enumerate(news):
        if one.at_s > at_s or (one.kind == "ended" and one.key in began):
            return news[:place], news[place:]
        if one.kind == "began":
            began.add(one.key)
    return news, []
