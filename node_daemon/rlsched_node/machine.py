"""The node's state machine: an event and the time go in, effects come out; no socket, process or clock."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from rlsched.wire.messages import (
    EndedAck,
    FetchLog,
    Heartbeat,
    HeartbeatAck,
    Hello,
    HoldClock,
    Kill,
    Launch,
    LaunchRefused,
    Leaving,
    Refused,
    SayHello,
    Welcome,
)
from rlsched_node.attempt import EXIT_KILLED, Attempt, AttemptKey, Phase
from rlsched_node.lease import Lease
from rlsched_node.steps import (
    Acknowledge,
    ClocksLocked,
    Connected,
    Disconnected,
    Effect,
    EndJobs,
    EndRank,
    Event,
    Exited,
    HardKill,
    HoldClocks,
    Note,
    Persist,
    Quit,
    Received,
    RecordEnded,
    ResetClocks,
    Send,
    SendLog,
    Started,
    StartFailed,
    StartRank,
    Stopping,
    Tick,
    TryNext,
)

HELLO_RETRY_S = 1.0
ENDED_REPEAT_S = 2.0
FORGET_GRACE_S = 5.0
HARD_KILL_AFTER_S = 5.0
"""How long past its grace a shim may take before the daemon itself ends the processes."""
MAX_LOG_BYTES = 1 << 19
REMEMBER_S = 600.0
MOST_REMEMBERED = 500
"""Ends that were acknowledged lately are told to each broker again: a standby's copy may lack them."""
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEARTBEAT_RANGE_S = (0.05, 60.0)


class NodeMachine:
    """What the node knows, and what it does next.

    Args:
        hello: What it says of itself.
        attempts: What is there of an earlier daemon.
        has_standby: Brokers have several addresses: where one refuses this node, the next is asked.

    Attributes:
        attempts: Every rank that this node has started or has been told to end, so that none starts twice.
            Those of another cluster are only waited for, until they have left their GPUs.
        cluster: The cluster that this node belongs to; "" before its first `Welcome`.
        epoch: The highest broker epoch of it obeyed; orders of a lower one are ignored.
        is_connected: The connection stands.
        is_registered: The broker on this connection has answered our `Hello`.
        is_stopping: The node ends its jobs and takes no new ones.
    """

    def __init__(self, hello: Hello, attempts: Iterable[Attempt] = (), *, has_standby: bool = False) -> None:
        self._hello, self._has_standby = hello, has_standby
        self._lease = Lease(hello.lost_after_s)
        self.cluster = hello.cluster
        self.epoch = hello.epoch
        self.attempts: dict[AttemptKey, Attempt] = {}
        self._open: dict[AttemptKey, Attempt] = {}  # those of `attempts` that are not over and acknowledged
        for attempt in attempts:
            self._add(attempt)
        self._refused: dict[AttemptKey, LaunchRefused] = {}  # an order that comes twice is refused twice
        self.is_registered = False
        self.is_connected = False
        self.is_stopping = False
        self._heartbeat_s = 1.0
        self._hello_at_s: float | None = None
        self._heartbeat_at_s = self._repeat_at_s = 0.0
        self._warned_epoch: int | None = None
        self._refusal = ""
        self._lately: deque[tuple[Attempt, float]] = deque(maxlen=MOST_REMEMBERED)
        self._has_told_waiting = False
        self._tells_anew = False

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event at `now_s` (seconds since boot, suspended time among them)."""
        return list(self._steps(event, now_s))

    @property
    def gpus_held(self) -> set[int]:
        """GPU numbers on which a rank runs."""
        return {gpu for attempt in self._open.values() if attempt.is_live for gpu in attempt.gpus}

    @property
    def is_drained(self) -> bool:
        """Nothing runs, and the broker knows every end."""
        return not self._open

    @property
    def is_idle(self) -> bool:
        """Nothing runs."""
        return not any(attempt.is_live for attempt in self._open.values())

    def next_tick_s(self) -> float:
        """When (seconds since boot) the next `Tick` is due at the latest."""
        due = [self._heartbeat_at_s, self._repeat_at_s] if self.is_registered else [self._hello_at_s or 0.0]
        due += [
            attempt.hard_kill_at_s
            for attempt in self._open.values()
            if attempt.is_live and attempt.hard_kill_at_s is not None
        ]
        return min(due)

    def _steps(self, event: Event, now_s: float) -> Iterator[Effect]:
        match event:
            case Received():
                yield from self._receive(event, now_s)
            case Connected():
                self.is_connected, self._has_told_waiting = True, False
                yield from self._say_hello(now_s)
            case Disconnected():
                if self.is_connected:
                    self._has_told_waiting = True
                    yield Note("lost the connection to the broker; jobs go on")
                self.is_connected = self.is_registered = False
                self._drop_waiting()
            case Started(key, pid):
                attempt = self.attempts[key]
                attempt.phase, attempt.pid = Phase.RUNNING, pid
                yield Note(f"attempt {key} runs as process {pid} on GPUs {list(attempt.gpus)}")
                yield Send(attempt.launched())
            case StartFailed():
                yield from self._start_failed(event)
            case Exited(key):
                yield from self._exited(self.attempts[key], event, now_s)
            case ClocksLocked(key):
                yield from self._clocks_locked(self.attempts[key], event)
            case Tick():
                yield from self._tick(now_s)
            case Stopping():
                yield from self._leave()
            case EndJobs(grace_s):
                yield from self._leave()
                self._drop_waiting()
                for attempt in self._open.values():
                    if attempt.is_live:
                        yield from self._end(attempt, grace_s, "node_stopped", now_s)

    def _leave(self) -> Iterator[Effect]:
        if self.is_registered and not self.is_stopping:
            yield Send(Leaving(name=self._hello.name))
        self.is_stopping = True

    # ---- the broker's messages ----------------------------------------------------------------------

    def _receive(self, event: Received, now_s: float) -> Iterator[Effect]:
        message = event.message
        match message:
            case Welcome():
                yield from self._welcome(message, event.request, now_s)
            case HeartbeatAck():
                renewed = self._lease.answered(event.request) if self.is_registered else None
                if renewed is not None:
                    yield renewed
            case SayHello():
                yield from self._say_hello(now_s)
            case Launch() | Kill() | HoldClock() if not self.is_registered:
                yield Note("ignored an order that came before the broker's welcome")
            case Launch() | Kill() | HoldClock():
                if message.epoch < self.epoch:
                    yield Note(f"ignored an order of epoch {message.epoch}; this node obeys {self.epoch}")
                    return
                yield from self._obey(message.epoch)
                key = self._key(message.job, message.attempt, message.rank)
                if isinstance(message, Launch) and message.fenced and self._lease.is_over(now_s):
                    yield Note(f"ignored the launch of {key}: no heartbeat has been answered for too long")
                    self.is_registered = False  # what it orders may be old: ask anew, with the next tick
                elif isinstance(message, Launch):
                    yield from self._launch(key, message)
                elif isinstance(message, HoldClock):
                    yield from self._hold_clock(key, max(message.sm_clock_mhz, 0))
                else:
                    yield from self._kill(key, message.grace_s, now_s)
            case EndedAck() if not self.is_registered:
                pass  # a broker of an earlier epoch may say so: the one that counts is told again
            case EndedAck(job=job, attempt=number, rank=rank):
                attempt = self.attempts.get(self._key(job, number, rank))
                if attempt is not None and attempt.phase is Phase.ENDED and not attempt.is_acknowledged:
                    if attempt.reason != "killed":  # by an order that the next broker may not know
                        self._lately.append((attempt, now_s))
                    yield from self._acknowledge(attempt)
            case FetchLog():
                key = self._key(message.job, message.attempt, message.rank)
                attempt = self.attempts.get(key)
                yield SendLog(
                    key,
                    event.request,
                    max(message.offset, 0),
                    min(max(message.max_bytes, 0), MAX_LOG_BYTES),
                    attempt is None or attempt.phase is Phase.ENDED,
                )
            case Refused(message=line):
                yield from self._refused_by_broker(line)

    def _refused_by_broker(self, line: str) -> Iterator[Effect]:
        if self.is_registered:
            yield Note(f"the broker refuses: {line}")
        elif not self._has_standby:
            yield Quit(line)
        else:
            if line != self._refusal:
                yield Note(f"the broker refuses, trying the next address: {line}")
            self._refusal = line
            yield TryNext()

    def _welcome(self, welcome: Welcome, request: int, now_s: float) -> Iterator[Effect]:
        if not _CLUSTER.fullmatch(welcome.cluster):
            yield Quit(f"expected a cluster id of letters and digits, got {welcome.cluster!r}")
            return
        if welcome.cluster != self.cluster:
            yield from self._join(welcome, now_s)
        elif welcome.epoch < self.epoch:
            if self._warned_epoch != welcome.epoch:
                yield Note(
                    f"the broker is at epoch {welcome.epoch}, this node has obeyed {self.epoch}: "
                    "expected the newest broker of this cluster, not an older one"
                )
            self._warned_epoch = welcome.epoch
            if self._has_standby:
                yield TryNext()
            return
        yield from self._obey(welcome.epoch)
        self._heartbeat_s = min(max(welcome.heartbeat_s, _HEARTBEAT_RANGE_S[0]), _HEARTBEAT_RANGE_S[1])
        self._heartbeat_at_s = now_s + self._heartbeat_s
        self.is_registered = True
        self._refusal = ""
        yield self._lease.welcome(request, welcome.lost_after_s)
        yield Note(f"registered with the broker at epoch {self.epoch}")
        forget = set(welcome.forget)
        for attempt in self._own():
            if attempt.key[:2] in forget:
                yield from self._forget(attempt, now_s)
            elif attempt.phase is Phase.RUNNING:
                yield Send(attempt.launched())
        yield from self._report_ends(now_s)

    def _join(self, welcome: Welcome, now_s: float) -> Iterator[Effect]:
        """Another journal: its job numbers mean other jobs, its epochs count anew."""
        self.cluster, self.epoch = welcome.cluster, welcome.epoch
        yield Persist(self.cluster, self.epoch)
        for attempt in list(self._open.values()):
            if not attempt.is_forgotten:
                yield from self._forget(attempt, now_s)

    def _launch(self, key: AttemptKey, launch: Launch) -> Iterator[Effect]:
        known = self.attempts.get(key)
        if known is not None:
            if known.is_forgotten:
                yield Send(key.refused("the broker has disowned this attempt before"))
            elif known.phase is Phase.ENDED:
                yield Send(known.ended())
            elif known.phase is Phase.RUNNING:
                yield Send(known.launched())
            return
        if key in self._refused:
            yield Send(self._refused[key])
            return
        objection = self._objection(launch)
        if objection:
            yield self._refuse(key, objection)
            return
        attempt = Attempt(key, tuple(launch.gpus), Phase.WAITING, launch=launch)
        self._add(attempt)
        yield from self._start_waiting()

    def _refuse(self, key: AttemptKey, message: str, *, is_for_now: bool = False) -> Effect:
        """For good: the broker gives the attempt up, and may have sent the order again before it knew."""
        self._refused[key] = key.refused(message, is_for_now=is_for_now)
        return Send(self._refused[key])

    def _objection(self, launch: Launch) -> str:
        """Why this launch cannot be obeyed; "" where it can."""
        if self.is_stopping:
            return "this node is being stopped"
        if not 0 <= launch.rank < launch.num_ranks == len(launch.nodes):
            return (
                f"expected rank below num_ranks and a node for each rank, got rank {launch.rank} "
                f"of {launch.num_ranks} on {len(launch.nodes)} nodes"
            )
        if not launch.command:
            return "expected a command, got an empty one"
        unknown = [gpu for gpu in launch.gpus if not 0 <= gpu < self._hello.gpus]
        if unknown or len(set(launch.gpus)) != len(launch.gpus):
            return f"expected distinct GPUs from 0 to {self._hello.gpus - 1}, got {launch.gpus}"
        for attempt in self._open.values():
            taken = sorted(set(attempt.gpus) & set(launch.gpus))
            if taken and (attempt.phase is Phase.WAITING or (attempt.is_live and not attempt.is_ending)):
                return f"GPUs {taken} are held by attempt {attempt.key}"
        return ""

    def _start_waiting(self) -> Iterator[Effect]:
        held = self.gpus_held
        for attempt in self._open.values():
            if attempt.phase is Phase.WAITING and held.isdisjoint(attempt.gpus):
                assert attempt.launch is not None
                launch, attempt.launch = attempt.launch, None
                attempt.phase = Phase.LAUNCHING
                yield StartRank(launch)

    def _kill(self, key: AttemptKey, grace_s: float, now_s: float) -> Iterator[Effect]:
        attempt = self.attempts.get(key) or self._add(Attempt(key, phase=Phase.WAITING))
        if attempt.is_live:
            yield from self._end(attempt, grace_s, "killed", now_s)
        elif attempt.phase is Phase.WAITING:
            yield from self._end_unstarted(attempt)
        else:
            yield Send(attempt.ended())

    def _forget(self, attempt: Attempt, now_s: float) -> Iterator[Effect]:
        attempt.is_forgotten = True
        if attempt.is_live:
            yield Note(f"attempt {attempt.key} is not the broker's: ending it")
            yield from self._end(attempt, FORGET_GRACE_S, "killed", now_s)
        elif attempt.phase is Phase.ENDED:
            yield from self._acknowledge(attempt)

    # ---- processes ----------------------------------------------------------------------------------

    def _end(self, attempt: Attempt, grace_s: float, reason: str, now_s: float) -> Iterator[Effect]:
        hard_kill_at_s = now_s + grace_s + HARD_KILL_AFTER_S
        if attempt.hard_kill_at_s is None or hard_kill_at_s < attempt.hard_kill_at_s:
            attempt.hard_kill_at_s = hard_kill_at_s
            yield EndRank(attempt.key, grace_s, reason)

    def _end_unstarted(self, attempt: Attempt) -> Iterator[Effect]:
        attempt.phase, attempt.launch, attempt.gpus = Phase.ENDED, None, ()
        attempt.exit_code, attempt.reason = EXIT_KILLED, "killed"
        yield RecordEnded(attempt.key, EXIT_KILLED, "killed")
        yield Send(attempt.ended())

    def _hold_clock(self, key: AttemptKey, mhz: int) -> Iterator[Effect]:
        """A rank that waits for its GPUs gets the clock with them; one that is over needs none."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if attempt.launch is not None:
            attempt.launch = msgspec.structs.replace(attempt.launch, sm_clock_mhz=mhz)
        elif attempt.is_live:
            yield HoldClocks(key, attempt.gpus, mhz)

    def _clocks_locked(self, attempt: Attempt, locked: ClocksLocked) -> Iterator[Effect]:
        """A node that may not set clocks after all registers anew, saying so."""
        attempt.sm_clock_mhz, attempt.clock_note = locked.mhz, locked.note
        if locked.note:
            yield Note(f"attempt {attempt.key} runs at {_clock_words(locked.mhz)}: {locked.note}")
        if locked.never and self._hello.sm_clocks_mhz:
            self._hello = msgspec.structs.replace(self._hello, sm_clocks_mhz=[], clocks_note=locked.note)
            self._tells_anew = True
        if attempt.phase is Phase.RUNNING:
            yield Send(attempt.clock_held())

    @staticmethod
    def _reset_clocks(attempt: Attempt) -> Iterator[Effect]:
        if attempt.sm_clock_mhz:
            attempt.sm_clock_mhz = 0
            yield ResetClocks(attempt.gpus)

    def _start_failed(self, failed: StartFailed) -> Iterator[Effect]:
        attempt = self.attempts[failed.key]
        yield Note(f"attempt {failed.key} cannot be started: {failed.message}")
        yield from self._reset_clocks(attempt)
        if attempt.is_ending:
            yield from self._end_unstarted(attempt)
        else:
            self._drop(attempt)
            yield self._refuse(failed.key, failed.message, is_for_now=failed.is_for_now)
        yield from self._start_waiting()

    def _exited(self, attempt: Attempt, exited: Exited, now_s: float) -> Iterator[Effect]:
        exit_code, reason = exited.exit_code, exited.reason
        attempt.phase, attempt.exit_code, attempt.reason = Phase.ENDED, exit_code, reason
        attempt.ended_s, attempt.ran_s = exited.ended_s, exited.ran_s
        attempt.hard_kill_at_s = None
        yield from self._reset_clocks(attempt)
        yield Note(f"attempt {attempt.key} ended with exit code {exit_code}{reason and f' ({reason})'}")
        if attempt.is_forgotten:
            yield from self._acknowledge(attempt)
        else:
            yield Send(attempt.ended())
            self._repeat_at_s = max(self._repeat_at_s, now_s + ENDED_REPEAT_S)
        yield from self._start_waiting()

    def _drop_waiting(self) -> None:
        for attempt in [a for a in self._open.values() if a.phase is Phase.WAITING]:
            self._drop(attempt)

    def _add(self, attempt: Attempt) -> Attempt:
        self.attempts[attempt.key] = attempt
        if not attempt.is_acknowledged:
            self._open[attempt.key] = attempt
        return attempt

    def _drop(self, attempt: Attempt) -> None:
        del self.attempts[attempt.key], self._open[attempt.key]

    def _acknowledge(self, attempt: Attempt) -> Iterator[Effect]:
        attempt.is_acknowledged = True
        del self._open[attempt.key]
        yield Acknowledge(attempt.key)

    # ---- speaking first -----------------------------------------------------------------------------

    def _tick(self, now_s: float) -> Iterator[Effect]:
        if self._hello_at_s is None:
            self._hello_at_s = now_s + HELLO_RETRY_S
        if not self.is_registered and now_s >= self._hello_at_s:
            if not self.is_connected and not self._has_told_waiting:
                self._has_told_waiting = True
                yield Note("no broker answers yet; trying on")
            yield from self._say_hello(now_s)
        launching = any(attempt.phase is Phase.LAUNCHING for attempt in self._open.values())
        if self._tells_anew and self.is_registered and not launching:
            self._tells_anew = False
            yield from self._say_hello(now_s)
        if self.is_registered and now_s >= self._heartbeat_at_s:
            self._heartbeat_at_s = now_s + self._heartbeat_s
            yield Send(Heartbeat(name=self._hello.name), self._lease.ask(now_s))
        if self.is_registered and now_s >= self._repeat_at_s:
            yield from self._report_ends(now_s)
        for attempt in self._open.values():
            if attempt.is_live and attempt.hard_kill_at_s is not None and now_s >= attempt.hard_kill_at_s:
                attempt.hard_kill_at_s = now_s + HARD_KILL_AFTER_S
                yield HardKill(attempt.key)

    def _report_ends(self, now_s: float) -> Iterator[Effect]:
        self._repeat_at_s = now_s + ENDED_REPEAT_S
        for attempt in self._own():
            if attempt.phase is Phase.ENDED:
                yield Send(attempt.ended())

    def _say_hello(self, now_s: float) -> Iterator[Effect]:
        self.is_registered = False
        self._drop_waiting()
        self._hello_at_s = now_s + HELLO_RETRY_S
        reports = [attempt.report() for attempt in self._own() if not attempt.is_forgotten]
        reports += [
            attempt.report()
            for attempt, acknowledged_s in self._lately
            if attempt.key.cluster == self.cluster and now_s - acknowledged_s <= REMEMBER_S
        ]
        hello = msgspec.structs.replace(
            self._hello,
            cluster=self.cluster,
            epoch=self.epoch,
            attempts=reports,
            lost_after_s=self._lease.lost_after_s,
        )
        yield Send(hello, self._lease.ask(now_s))

    def _obey(self, epoch: int) -> Iterator[Effect]:
        if epoch > self.epoch:
            self.epoch = epoch
            yield Persist(self.cluster, epoch)

    def _key(self, job: int, attempt: int, rank: int) -> AttemptKey:
        return AttemptKey(job, attempt, rank, self.cluster)

    def _own(self) -> list[Attempt]:
        """The open attempts of this node's cluster."""
        return [attempt for attempt in self._open.values() if attempt.key.cluster == self.cluster]


def _clock_words(mhz: int) -> str:
    return f"{mhz} MHz" if mhz else "the clock that its GPUs choose"
