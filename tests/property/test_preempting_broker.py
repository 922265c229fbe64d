"""Real brokers and nodes in a random world: orders are lost; brokers and node daemons crash, are paused, and
are cut off for longer than their leases; ranks fail to start; jobs heed SIGTERM or not.

No two processes share a GPU, no job runs twice at a time, no user exceeds a quota, and every job ends.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rlsched.broker.base.entries import Entry, decode_entry, encode_entry
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.events import Due, NodeSaid, Tick
from rlsched.broker.journal.snapshot_table import CREATE as CREATE_SNAPSHOTS
from rlsched.broker.journal.snapshot_table import SnapshotTable
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, ended_job, job_of
from rlsched.broker.state.finished_table import CREATE, EndedTable, put_finished
from rlsched.broker.state.predictions import RUNNING_MEAN, Predictions
from rlsched.broker.state.priorities import PRIORITIES, PriorityRules
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.loop import fitting_jobs
from rlsched.decide.order.keys import Order
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.wire.messages import (
    AttemptKey,
    BrokerToNode,
    Cancel,
    Capabilities,
    DownNode,
    Hello,
    Launch,
    NodeMessage,
    Ok,
    Refused,
    SayHello,
    SetMember,
    SetQuota,
)
from rlsched_node.lease_file import LOOK_S, fence_times
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes import steps
from rlsched_node.processes.attempt import LocalRank, Phase
from tests.quick import quick
from tests.support.broker.hand import submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.quota_oracle import QuotaOracle
from tests.support.soak_size import times

LIMITS = Limits(
    heartbeat_s=1.0,
    lease_s=4.0,
    launch_timeout_s=1e6,
    kill_again_s=5.0,
    log_timeout_s=10.0,
    grace_s=8.0,
    ended_s=math.inf,
)
NODES, GPUS = 2, 4
BEFORE_FEBRUARY_S = 1_769_904_000.0 - 100.0
WEIGHTS = {
    "deliver": 40,
    "time": 30,
    "submit": 10,
    "cancel": 2,
    "end": 10,
    "cut": 2,
    "broker": 2,
    "daemon": 2,
    "partition": 1.5,
    "pause": 1,
    "freeze": 1,
    "health": 2,
    "reboot": 1,
    "quota": 5,
}
QUIET = dict.fromkeys(("cut", "broker", "daemon", "partition", "pause", "freeze", "health", "reboot"), 0.2)
RANKS = PriorityRules(half_life_s=300.0, age_s=60.0, every_s=5.0)
USERS, ACCOUNTS = ("ada", "bob", "cyd"), ("", "ml", "hep")
PARTIES = (*(("user", name) for name in ("default", *USERS)), ("account", "ml"), ("account", "default"))


class Restless(Scheduler):
    """Preempts at random, starts the first job that fits, and requests calls at random times."""

    name = policy_id = "restless"
    abilities = Abilities(preempts=True)

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.calm = False

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        del record
        return Decision(action=self._action(state, partition, now_s), source="rule")

    def _action(self, state: ClusterState, partition: int, now_s: float) -> Action:
        job = state.arrays.job
        able = [
            seq
            for seq in state.running()
            if not job.pinned[state.slot_of(seq)] and job.start_s[state.slot_of(seq)] < now_s
        ]
        if able and not self.calm and self.chance.random() < 0.3:
            return Preempt(self.chance.choice(able))
        seq = next(iter(fitting_jobs(state, partition)), -1)
        if seq >= 0:
            return start_action(state, partition, seq)
        return Wait(until_s=now_s + self.chance.choice((0.0005, 1.0, 3.25)))


def hello(name: str, cluster: str = "", epoch: int = 0, boot_id: str = "") -> Hello:
    return Hello(
        name=name,
        gpus=GPUS,
        cluster=cluster,
        epoch=epoch,
        boot_id=boot_id,
        capabilities=Capabilities(fences=True),
    )


class MemoryJournal:
    """A journal that survives its broker, and nothing else."""

    ended_at = 1 << 60

    def __init__(self) -> None:
        self._rows: list[tuple[float, bytes]] = []
        self.over: list[EndedJob] = []
        db = sqlite3.connect(":memory:")
        tables = "CREATE TABLE meta (key TEXT, value TEXT); CREATE TABLE entries (n INTEGER, crc INTEGER)"
        db.executescript(f"{tables}; {CREATE} {CREATE_SNAPSHOTS}")
        self.ended, self._db = EndedTable(Path("memory"), db), db
        self.snapshots = SnapshotTable(Path("memory"), db)

    @property
    def last(self) -> int:
        return len(self._rows)

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        self._rows += [(now_s, encode_entry(entry)) for entry in entries]
        self.over += over or ()
        put_finished(self._db, over or ())

    def rows(self, after: int = 0) -> Iterator[JournalRow]:
        for n, (now_s, payload) in enumerate(self._rows[after:], after + 1):
            yield JournalRow(n, now_s, decode_entry(payload))


class World:
    """One broker, some nodes, and the processes on them.

    Attributes:
        processes: (node, rank) -> its GPUs, of every process that is alive.
        told: Time at which each process that was ordered to end is killed, seconds.
        ran: Every rank that was ever started.
        leases: Content of each node's lease file: send time of the last answered heartbeat.
        fenced: Processes that obey the lease, with the `lost_after_s` of each.
        away: Disconnected nodes, with the end of the outage.
        paused: Nodes with a paused daemon: end of the pause, and events in the meantime.
    """

    def __init__(self, chance: Random, journal: MemoryJournal, scheduler: Scheduler | None = None) -> None:
        self.chance, self.journal = chance, journal
        self.scheduler = scheduler or Restless(chance)
        self.weights = dict(WEIGHTS)
        self.oracle, self.followed, self.most_barred = QuotaOracle(), 0, 0
        self.broker = HandBroker(
            self.scheduler,  # type: ignore[arg-type]
            journal,  # type: ignore[arg-type]
            limits=LIMITS,
            now_s=BEFORE_FEBRUARY_S,
            ranks=RANKS,
        )
        self.sent = 0
        self.processes: dict[tuple[str, AttemptKey], set[int]] = {}
        self.told: dict[tuple[str, AttemptKey], float] = {}
        self.leases: dict[str, float] = {}
        self.fenced: dict[tuple[str, AttemptKey], float] = {}
        self.boots, self.boot_ids = 0, dict[str, str]()
        self.away: dict[str, float] = {}
        self.paused: dict[str, tuple[float, list[steps.Event]]] = {}
        self.ran: set[tuple[str, AttemptKey]] = set()
        self.nodes = {name: NodeMachine(hello(name)) for name in (f"n{n}" for n in range(NODES))}
        self.orders: dict[str, deque[tuple[BrokerToNode, int]]] = {name: deque() for name in self.nodes}
        self.words: dict[str, deque[tuple[NodeMessage, int]]] = {name: deque() for name in self.nodes}
        for name in self.nodes:
            self.happens(name, steps.Connected())

    # ---- nodes ------------------------------------------------------------------------------------

    def happens(self, name: str, event: steps.Event) -> None:
        if name in self.paused:
            self.paused[name][1].append(event)
            return
        for effect in self.nodes[name].handle(event, self.broker.now_s):
            match effect:
                case steps.Send(message, request):
                    if name not in self.away:
                        self.words[name].append((message, request))
                case steps.RenewLease(renewed_s):
                    self.leases[name] = renewed_s
                case steps.StartRank(launch):
                    self.start(name, launch)
                case steps.EndRank(key, grace_s):
                    kill_s = self.broker.now_s + grace_s
                    self.told[name, key] = min(kill_s, self.told.get((name, key), kill_s))

    def start(self, name: str, launch: Launch) -> None:
        key = AttemptKey(launch.job, launch.attempt, launch.rank, self.broker.state.identity)
        assert (name, key) not in self.ran, "a rank is started once"
        assert not any(other.job == key.job and other.attempt != key.attempt for _, other in self.processes)
        if self.chance.random() < 0.03:
            is_about_owner = self.chance.random() < 0.3
            self.happens(name, steps.StartFailed(key, "no", is_about_owner=is_about_owner))
            return
        self.ran.add((name, key))
        self.processes[name, key] = set(launch.gpus)
        assert launch.lost_after_s == self.broker.state.jobs[launch.job].spec.lost_after_s
        if launch.lost_after_s:
            self.fenced[name, key] = launch.lost_after_s
        self.happens(name, steps.Started(key, 1))

    def exits(self, name: str, key: AttemptKey, exit_code: int, reason: str = "") -> None:
        del self.processes[name, key]
        told = self.told.pop((name, key), None) is not None
        reason = reason or ("killed" if told else "")
        self.happens(name, steps.Exited(key, exit_code, reason, self.broker.now_s))

    # ---- the wire ---------------------------------------------------------------------------------

    def batch(self, *events: object, after_s: float = 0.001) -> None:
        self.broker.batch(events, after_s=after_s)  # type: ignore[arg-type]
        self.post()

    def post(self) -> None:
        """Routes to nodes; a node that is cut off, or whose connection was dropped, loses its messages."""
        for row in self.journal.rows(self.followed):
            self.oracle.follow([row.entry], row.now_s)
            self.followed += 1
        self.most_barred = max(
            self.most_barred, self.oracle.agrees_with(self.broker.state, self.broker.machine.now_s)
        )
        sent = self.broker.sent
        for (name, order), request in zip(sent.orders[self.sent :], sent.requests[self.sent :], strict=True):
            if name not in self.away:
                self.orders[name].append((order, request))
        self.sent = len(sent.orders)

    def deliver(self, name: str) -> None:
        """Deliver the next message each way; an order to launch finds the GPUs empty."""
        if name in self.away:
            return
        if self.orders[name] and name not in self.paused:
            order, request = self.orders[name].popleft()
            if isinstance(order, Launch):
                there = {
                    key
                    for (node, key), gpus in self.processes.items()
                    if node == name and not gpus.isdisjoint(order.gpus)
                }
                assert {(key.job, key.attempt) for key in there} <= {(order.job, order.attempt)}
            self.happens(name, steps.Received(order, request))
        if self.words[name]:
            message, request = self.words[name].popleft()
            if name in self.broker.sent.dropped and not isinstance(message, Hello):
                self.orders[name].append((SayHello(), 0))  # as the transport answers
                return
            if name in self.broker.sent.dropped:
                self.broker.sent.dropped = [one for one in self.broker.sent.dropped if one != name]
            self.batch(NodeSaid(name, request, message))

    # ---- random events --------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance
        match chance.choices(list(self.weights), list(self.weights.values()))[0]:
            case "submit":
                self.submit()
            case "quota":
                self.limit()
                self.post()
            case "cancel":
                if self.broker.state.jobs:
                    self.broker.ask(Cancel(job=chance.randint(1, len(self.broker.state.jobs))))
                    self.post()
            case "end":
                self.end()
            case "cut":
                self.cut(chance.choice(list(self.nodes)))
            case "broker":
                self.restart()
            case "daemon":
                self.restart_daemon(chance.choice(list(self.nodes)))
            case "partition":
                self.away[chance.choice(list(self.nodes))] = self.broker.now_s + chance.uniform(1.0, 60.0)
            case "pause":
                self.paused.setdefault(
                    chance.choice(list(self.nodes)), (self.broker.now_s + chance.uniform(1.0, 60.0), [])
                )
            case "freeze":
                self.freeze(3600.0 if chance.random() < 0.1 else chance.uniform(1.0, 60.0))
            case "health":
                unhealthy = chance.choice(("", "", "no scratch", "a GPU is lost"))
                self.happens(chance.choice(list(self.nodes)), steps.Checked(unhealthy))
            case "reboot":
                self.reboot(chance.choice(list(self.nodes)))
            case "time":
                self.time(chance.choice((0.001, 0.5, 1.0, 5.0)))
            case _:
                self.deliver(chance.choice(list(self.nodes)))

    def submit(self) -> None:
        """Submit a job; it is refused if and only if a quota requires it."""
        chance, accounts = self.chance, self.broker.state.accounts
        user, account = chance.choice(USERS), chance.choice(ACCOUNTS)
        message = submit(
            chance.randint(1, 6),
            preemptible=chance.random() < 0.8,
            lost_after_s=chance.choice((None, 0.0, 10.0, 16.0, 40.0)),
            priority=chance.choice(PRIORITIES),
            user=user,
            account=account if accounts.may_charge(account, user) else "",
        )
        charged = [("user", user), ("account", accounts.account_to_charge(user, message.account))]
        expected = self.oracle.refuses([party for party in charged if party[1]], message.num_gpus)
        reply = self.broker.ask(message)
        refused = isinstance(reply, Refused) and reply.message.startswith("quota: ")
        assert refused == expected, reply
        self.post()

    def limit(self) -> None:
        """Change a user's quotas, or the accounts that a user may charge."""
        chance = self.chance
        if chance.random() < 0.4:
            account, person = chance.choice(ACCOUNTS[1:]), chance.choice(USERS)
            self.broker.ask(SetMember(account=account, person=person, member=chance.random() < 0.8))
            return
        kind, name = chance.choice(PARTIES)
        limits: dict[str, float | None] = {
            chance.choice(("gpus", "gpus", "jobs", "gpu_hours")): chance.choice((0, 1, 2, 4, 6, None))
        }
        if "gpu_hours" in limits:
            limits["gpu_hours"] = chance.choice((0, 0.01, 0.05, 0.2, None))
        self.broker.ask(SetQuota(kind=kind, name=name, **limits))  # type: ignore[arg-type]

    def lift(self) -> None:
        """Remove all quotas."""
        for kind, name in PARTIES:
            self.broker.ask(SetQuota(kind=kind, name=name, gpus=None, jobs=None, gpu_hours=None))  # type: ignore[arg-type]
        self.post()

    def end(self) -> None:
        """End a process: by itself or on request, with exit code 0, with an error, or by the signal."""
        if self.processes:
            name, key = self.chance.choice(list(self.processes))
            heeds = (name, key) in self.told
            self.exits(name, key, self.chance.choice((0, 143, 143) if heeds else (0, 0, 0, 1)))

    def time(self, seconds: float) -> None:
        """Advance the time while the broker runs."""
        until_s = self.broker.now_s + seconds
        while self.broker.now_s < until_s:
            now_s, due_s = self.broker.now_s, self.broker.machine.due_s()
            step_s = min(0.4, until_s - now_s)
            if now_s < due_s < now_s + step_s:
                self.batch(Due(), after_s=due_s - now_s)
            self.batch(Tick(), after_s=max(now_s + step_s - self.broker.now_s, 0.001))
            self.advance_nodes()
            for name in self.nodes:
                for _ in range(3):
                    self.deliver(name)

    def freeze(self, seconds: float) -> None:
        """Pause the broker; the nodes continue."""
        start_s, step_s = self.broker.now_s, 0.4 if seconds < 100.0 else 4.0
        while self.broker.now_s < start_s + seconds:
            self.broker.now_s = round(self.broker.now_s + step_s, 3)
            self.advance_nodes()

    def advance_nodes(self) -> None:
        """Events at nodes as time passes: ends, fences, ticks, and the end of outages and pauses."""
        now_s = self.broker.now_s
        for (name, key), kill_s in list(self.told.items()):
            if kill_s <= now_s:
                self.exits(name, key, 137)
        for name, key in [one for one in self.processes if one in self.fenced]:
            if self.leases[name] + LOOK_S + sum(fence_times(self.fenced[name, key], LIMITS.grace_s)) <= now_s:
                self.exits(name, key, 137, "fenced")
        for name, until_s in list(self.away.items()):
            if until_s <= now_s:
                del self.away[name]
                self.cut(name)
        for name, (until_s, meanwhile) in list(self.paused.items()):
            if until_s <= now_s:
                del self.paused[name]
                for missed in meanwhile:
                    self.happens(name, missed)
        for name in self.nodes:
            if name not in self.paused:
                self.happens(name, steps.NodeTick())

    def cut(self, name: str) -> None:
        """Break the connection and restore it; messages in flight are lost."""
        self.orders[name].clear()
        self.words[name].clear()
        self.happens(name, steps.Disconnected())
        self.words[name].clear()
        self.happens(name, steps.Connected())

    def restart_daemon(self, name: str) -> None:
        """kill -9: processes and files survive."""
        old = self.nodes[name]
        for missed in self.paused.pop(name, (0.0, []))[1]:  # files that shims wrote meanwhile
            if isinstance(missed, steps.Exited):
                self.happens(name, missed)
        kept = []
        for key, attempt in old.attempts.known.items():
            if (name, key) in self.processes:
                kept.append(LocalRank(key, attempt.gpus, Phase.RUNNING, 1))
            elif attempt.phase is Phase.ENDED:
                kept.append(attempt)
        self.nodes[name] = NodeMachine(hello(name, old.cluster, old.epoch, self.boot_ids.get(name, "")), kept)
        self.cut(name)

    def reboot(self, name: str) -> None:
        """Reboot a machine with all its processes; an operator may declare it down before it is back."""
        self.restart_daemon(name)  # pending writes reach its disk
        self.words[name].clear()
        old, dead = self.nodes[name], [key for node, key in self.processes if node == name]
        for key in dead:
            del self.processes[name, key]
            self.told.pop((name, key), None)
        unreachable = name in self.broker.state.nodes and self.broker.state.nodes[name].state == "unreachable"
        if unreachable and self.chance.random() < 0.5:
            assert self.broker.ask(DownNode(node=name)) == Ok()
            self.post()
        kept = [
            attempt if key not in dead else LocalRank(key, exit_code=137, reason="node_stopped")
            for key, attempt in old.attempts.known.items()
        ]
        self.boots += 1
        self.boot_ids[name] = f"b{self.boots}"
        self.nodes[name] = NodeMachine(hello(name, old.cluster, old.epoch, self.boot_ids[name]), kept)
        self.cut(name)

    def restart(self) -> None:
        """kill -9: the journal survives. The next broker may have other timeouts."""
        replay = replayed(self.journal, self.broker.state.order, self.scheduler)
        assert shape(replay) == shape(self.broker.state)
        limits = msgspec.structs.replace(LIMITS, lost_after_s=self.chance.choice((0.0, 10.0, 16.0, 40.0)))
        self.broker = HandBroker(
            self.scheduler,  # type: ignore[arg-type]
            self.journal,  # type: ignore[arg-type]
            limits=limits,
            now_s=self.broker.now_s,
            ranks=RANKS,
        )
        self.sent = 0
        for name in self.nodes:
            self.cut(name)


def shape(state: BrokerState) -> list[object]:
    """The relevant part of a book."""
    return [
        state.cluster.digest(),
        [(job.number, job.state, job.retries, job.preemptions, job.earlier_s) for job in state.jobs.values()],
        [msgspec.json.encode(job.attempt) for job in state.jobs.values()],
        [(name, node.state, node.reason, sorted(node.live_jobs)) for name, node in state.nodes.items()],
        (dict(state.ran_on), state.health_failures),
        dict(state.decisions),
        [sorted(state.eligibility.barring_reasons(job.seq)) for job in state.jobs.values()],
        state.quotas.rows(state.now_s),
        state.accounts.members(),
        [(seq, state.priorities.level(job.number)) for seq, job in state.job_of_seq.items()],
        dict(state.priorities.ln_weights),
    ]


def replayed(journal: MemoryJournal, order: Order, scheduler: Scheduler | None = None) -> BrokerState:
    """The state of the journal; dials are set again only by a `scheduler` that has some."""
    state = BrokerState(Predictions(RUNNING_MEAN), order)
    over: list[EndedJob] = []
    state.on_finished = lambda job: over.append(ended_job(job, state.nodes))
    state.replay(journal.rows(), scheduler if scheduler is not None and scheduler.strategy else None)
    assert over == journal.over
    for row in over:
        assert msgspec.json.encode(job_of(row)) == msgspec.json.encode(state.jobs[row.job])
    return state


def rounds(world: World) -> Iterator[int]:
    """Until every job has ended."""
    for number in range(300):
        if not any(job.live for job in world.broker.state.jobs.values()):
            return
        yield number
    raise AssertionError(
        f"jobs that never end: {[job for job in world.broker.state.jobs.values() if job.live]}"
    )


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=times(25), deadline=None)
def test_no_gpu_is_given_twice_and_every_job_ends(seed: int) -> None:
    world = World(Random(seed), MemoryJournal())
    for _ in range(150):
        world.step()
    world.scheduler.calm = True  # type: ignore[attr-defined]
    world.lift()
    world.time(61.0)
    for name in world.nodes:
        world.happens(name, steps.Checked(""))
    for _ in rounds(world):
        for name in world.nodes:
            while world.orders[name] or world.words[name]:
                world.deliver(name)
        world.end()
        world.time(2.0)
    assert shape(replayed(world.journal, Order())) == shape(world.broker.state)
    assert world.processes == {}
    jobs = world.broker.state.jobs.values()
    event(f"preempted: {sum(job.preemptions > 0 for job in jobs) > 3}")
    event(f"barred by quotas: {world.most_barred > 0}")


@pytest.mark.parametrize(
    "policy",
    quick(
        ["fifo-backfill", "easy", "tuned", "gittins", "tiresias", "ppo"],
        "tuned".__eq__,
        rest=pytest.mark.soak,
    ),
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=times(5), deadline=None)
def test_no_policy_exceeds_a_quota(policy: str, seed: int) -> None:
    world = World(Random(seed), MemoryJournal(), load_scheduler(policy))
    world.weights |= QUIET | {"submit": 30, "end": 30, "quota": 8}
    for _ in range(300):
        world.step()
    replay = replayed(world.journal, world.broker.state.order, world.scheduler)
    assert shape(replay) == shape(world.broker.state)
    event(f"starts under a quota: {world.oracle.starts_under_quota > 10}")
    event(f"barred by quotas: {world.most_barred > 0}")
