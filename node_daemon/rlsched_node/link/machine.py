"""The node's state machine: computes the effects of an event at a given time.

The state machine uses no sockets, starts no processes and reads no clocks. `attempts.py` contains the state
of the node's ranks.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from rlsched.wire.messages import (
    AttemptKey,
    EndedAck,
    FetchLog,
    GpuMemory,
    Heartbeat,
    HeartbeatAck,
    Held,
    Hello,
    HoldClock,
    Holding,
    Kill,
    Launch,
    Leaving,
    LimitTime,
    Refused,
    SayHello,
    Welcome,
)
from rlsched_node.link.attempts import NodeAttempts
from rlsched_node.link.lease import Lease
from rlsched_node.processes.attempt import LocalRank, Phase, grace_s_of
from rlsched_node.processes.steps import (
    Checked,
    ClocksLocked,
    Connected,
    CopyFailed,
    Disconnected,
    Effect,
    EndJobs,
    Event,
    Exited,
    GpusOut,
    Limited,
    NodeTick,
    Note,
    Persist,
    Quit,
    Received,
    Send,
    SendLog,
    Started,
    StartFailed,
    Stopping,
    TryNext,
)

HELLO_RETRY_S = 1.0
ENDED_REPEAT_S = 2.0
MAX_LOG_BYTES = 1 << 19
REMEMBER_S = 600.0
MOST_REMEMBERED = 500
"""Maximum number of acknowledged ends that a node reports again in its `Hello`, for a standby that lacks
them."""
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEARTBEAT_RANGE_S = (0.05, 60.0)


class NodeMachine:
    """State of the node. `handle` returns the effects of an event.

    Args:
        hello: Message with which the node registers.
        attempts: Attempts that an earlier daemon left.
        has_standby: The node has several broker addresses. If one broker refuses the node, the node tries
            the next address.
        forgets_cluster: If a broker of another cluster answers, join its cluster and end the jobs that run
            here.

    Attributes:
        attempts: Ranks that wait, run or have ended on this node.
        cluster: The cluster to which this node belongs; "" before its first `Welcome`.
        epoch: Highest epoch that a broker of this cluster has sent in a `Welcome` or an order. Orders of a
            lower epoch are ignored.
        is_connected: The connection to the broker is established.
        is_registered: The broker on this connection has answered the `Hello`.
        tells_power: The broker accepts the power draw of the GPUs in a heartbeat.
        tells_clock: The broker accepts the time of this machine in a heartbeat.
        tells_usage: The broker accepts the usage of ranks.
        tells_memory: The broker accepts `GpuMemory`, and this node reports it.
        is_stopping: The node is being stopped and accepts no new jobs.
        is_checked: The result of the first health check is known; before that, the node does not register.
    """

    def __init__(
        self,
        hello: Hello,
        attempts: Iterable[LocalRank] = (),
        *,
        is_checked: bool = True,
        has_standby: bool = False,
        forgets_cluster: bool = False,
    ) -> None:
        self._hello, self._has_standby = hello, has_standby
        self._forgets_cluster = forgets_cluster
        self._lease = Lease()
        self.cluster = hello.cluster
        self.epoch = hello.epoch
        self.attempts = NodeAttempts(hello.gpus, attempts)
        self.is_registered = self.tells_power = self.tells_clock = self.tells_usage = False
        self.tells_memory, self._usable_mib = False, dict[int, int]()
        self.is_connected = False
        self.is_stopping = False
        self.is_checked = is_checked
        self._heartbeat_s = 1.0
        self._hello_at_s: float | None = None
        self._heartbeat_at_s = self._repeat_at_s = 0.0
        self._warned_epoch: int | None = None
        self._warned_cluster = ""
        self._refusal = ""
        self._lately: deque[tuple[LocalRank, float]] = deque(maxlen=MOST_REMEMBERED)
        self._has_told_waiting = False
        self._tells_anew = False

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Handle one event at `now_s` (seconds since boot, including time in suspension)."""
        was_foreign = self.is_foreign
        effects = list(self._steps(event, now_s))
        if was_foreign and self.is_foreign:  # that broker uses the same job IDs for other jobs
            return [
                one
                for one in effects
                if not isinstance(one, Send) or isinstance(one.message, Hello | Leaving)
            ]
        return effects

    @property
    def is_foreign(self) -> bool:
        """Whether a broker of another cluster answers while jobs of this node's cluster run here."""
        return bool(self._warned_cluster) and not self.is_registered

    def next_tick_s(self) -> float:
        """Return the time by which the daemon must send the next `NodeTick`, seconds since boot."""
        due = [self._heartbeat_at_s, self._repeat_at_s] if self.is_registered else [self._hello_at_s or 0.0]
        return min(due + self.attempts.hard_kill_times_s)

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
                    yield Note("lost the connection to the broker; jobs continue")
                self.is_connected = self.is_registered = False
                self.attempts.drop_waiting()
            case Started(key, pid):
                yield from self.attempts.record_start(key, pid)
            case StartFailed():
                yield from self.attempts.start_failed(event)
            case Exited():
                self._repeat_at_s = max(self._repeat_at_s, now_s + ENDED_REPEAT_S)
                yield from self.attempts.record_exit(event)
            case ClocksLocked():
                if event.never and self._hello.sm_clocks_mhz:  # registers again, without clocks
                    self._hello = msgspec.structs.replace(
                        self._hello, sm_clocks_mhz=[], clocks_note=event.note
                    )
                    self._tells_anew = True
                yield from self.attempts.clocks_locked(event)
            case CopyFailed(key, note):
                yield from self.attempts.record_copy_failure(key, note)
            case Limited(key, limit_s):
                yield from self.attempts.record_limit(key, limit_s)
            case Checked():
                yield from self._report_checks(event.unhealthy, now_s)
            case GpusOut(held, usable_mib):
                yield from self._gpus_out(held)
                yield from self._gpu_memory(usable_mib)
            case NodeTick():
                yield from self._tick(now_s)
            case Stopping():
                yield from self._leave()
            case EndJobs(grace_s):
                yield from self._leave()
                yield from self.attempts.end_all(grace_s, now_s)

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
                renewed = self._lease.record_answer(event.request) if self.is_registered else None
                if renewed is not None:
                    yield renewed
            case SayHello():
                yield from self._say_hello(now_s)
            case Launch() | Kill() | HoldClock() | LimitTime() if not self.is_registered:
                yield Note("ignored an order that the broker sent before its Welcome")
            case Launch() | Kill() | HoldClock() | LimitTime():
                if message.epoch < self.epoch:
                    yield Note(f"ignored an order of epoch {message.epoch}, expected {self.epoch} or later")
                    return
                yield from self._obey(message.epoch)
                key = self._key(message.job, message.attempt, message.rank)
                if isinstance(message, Launch) and self._lease.has_run_out(
                    message.lost_after_s, grace_s_of(message), now_s
                ):
                    yield Note(f"ignored the launch of {key}: no heartbeat has been answered for too long")
                    self.is_registered = False  # the order may be old: register again at the next tick
                elif isinstance(message, Launch):
                    yield from self.attempts.launch(key, message, is_stopping=self.is_stopping)
                elif isinstance(message, HoldClock):
                    yield from self.attempts.hold_clock(key, max(message.sm_clock_mhz, 0))
                elif isinstance(message, LimitTime):
                    yield from self.attempts.limit_time(key, message.limit_s)
                else:
                    yield from self.attempts.kill(key, message.grace_s, now_s)
            case EndedAck() if not self.is_registered:
                pass  # may be from an earlier broker; the end is reported to the current broker again
            case EndedAck(job=job, attempt=number, rank=rank):
                key = self._key(job, number, rank)
                ended = self.attempts.unacknowledged(key)
                if ended is not None and ended.reason != "killed":  # a standby may lack the order to kill
                    self._lately.append((ended, now_s))
                yield from self.attempts.record_acked_end(key)
            case FetchLog():
                key = self._key(message.job, message.attempt, message.rank)
                attempt = self.attempts.known.get(key)
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
            running = self.attempts.running_for_others(welcome.cluster)
            if running and not self._forgets_cluster:
                yield from self._stay(welcome, running)
                return
            before = self.cluster
            yield from self._join(welcome, now_s)
            if before:  # registers again, with its attempts of this cluster
                yield from self._say_hello(now_s)
                return
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
        self.is_registered, self.tells_power = True, welcome.hears_power
        self.attempts.tells_limits = welcome.hears_limits
        self.attempts.tells_output = welcome.hears_output
        self.tells_clock, self.tells_usage = welcome.hears_clock, welcome.hears_usage
        self._refusal = self._warned_cluster = ""
        self._forgets_cluster = False
        renewed = self._lease.record_answer(request)
        if renewed is not None:
            yield renewed
        yield Note(f"registered with the broker at epoch {self.epoch}")
        self.tells_memory = welcome.hears_memory and self._hello.capabilities.tells_memory
        if self.tells_memory:
            yield Send(GpuMemory(usable_mib=self._usable_mib))
        forget = set(welcome.forget)
        for attempt in self.attempts.of_cluster(self.cluster):
            if attempt.key[:2] in forget:
                yield from self.attempts.forget(attempt, now_s)
            elif attempt.phase is Phase.RUNNING:
                yield Send(attempt.launched(tells_limit=welcome.hears_limits))
                if attempt.output_note and welcome.hears_output:
                    yield Send(attempt.output_failed())
        yield from self._report_ends(now_s)

    def _stay(self, welcome: Welcome, running: list[LocalRank]) -> Iterator[Effect]:
        """Keep the jobs while a broker of another cluster answers, and obey no order of that broker."""
        if self._warned_cluster != welcome.cluster:
            self._warned_cluster = welcome.cluster
            yield Note(
                f"the broker is of cluster {welcome.cluster}; {len(running)} ranks of cluster "
                f"{running[0].key.cluster} run here and continue, so this node obeys none of its orders and "
                "joins it after they have ended; `rlsched node --forget-cluster` ends them and joins at once"
            )
        if self._has_standby:
            yield TryNext()

    def _join(self, welcome: Welcome, now_s: float) -> Iterator[Effect]:
        """Join another cluster. Its job IDs denote other jobs, and its epochs are counted separately.

        Reports of ended ranks that the previous cluster's broker has not acknowledged are kept for that
        broker. With `forgets_cluster`, they are dropped, and the previous cluster's ranks are ended.
        """
        self.cluster, self.epoch = welcome.cluster, welcome.epoch
        yield Persist(self.cluster, self.epoch)
        if self._forgets_cluster:
            yield from self.attempts.forget_others(self.cluster, now_s)

    # ---- messages without a request -----------------------------------------------------------------

    def _report_checks(self, unhealthy: str, now_s: float) -> Iterator[Effect]:
        if unhealthy != self._hello.unhealthy:
            yield Note(f"gets no new jobs: {unhealthy}" if unhealthy else "is healthy, and gets jobs again")
            self._hello = msgspec.structs.replace(self._hello, unhealthy=unhealthy)
            if self.is_registered:
                yield self._heartbeat(now_s)
        if not self.is_checked:
            self.is_checked = True
            if self.is_connected:
                yield from self._say_hello(now_s)

    def _gpus_out(self, held: list[Holding]) -> Iterator[Effect]:
        before = {(gpu, one.by) for one in self._hello.held for gpu in one.gpus}
        now = {(gpu, one.by) for one in held for gpu in one.gpus}
        if now == before:
            return
        for gpu, why in sorted(now - before):
            yield Note(f"GPU {gpu} gets no new jobs: {why}")
        for gpu in sorted({gpu for gpu, _ in before} - {gpu for gpu, _ in now}):
            yield Note(f"GPU {gpu} gets jobs again")
        self._hello = msgspec.structs.replace(self._hello, held=held)
        if self.is_registered:
            yield Send(Held(held=held))

    def _gpu_memory(self, usable_mib: dict[int, int]) -> Iterator[Effect]:
        if usable_mib == self._usable_mib:
            return
        for gpu in sorted(self._usable_mib.keys() | usable_mib.keys()):
            now_mib = usable_mib.get(gpu)
            if now_mib != self._usable_mib.get(gpu):
                has = "all its memory" if now_mib is None else f"{now_mib} MiB of memory"
                yield Note(f"GPU {gpu} has {has} free for jobs")
        self._usable_mib = usable_mib
        if self.is_registered and self.tells_memory:
            yield Send(GpuMemory(usable_mib=usable_mib))

    def _tick(self, now_s: float) -> Iterator[Effect]:
        if self._hello_at_s is None:
            self._hello_at_s = now_s + HELLO_RETRY_S
        if not self.is_registered and now_s >= self._hello_at_s:
            if not self.is_connected and not self._has_told_waiting:
                self._has_told_waiting = True
                yield Note("no broker answers yet; retrying")
            yield from self._say_hello(now_s)
        if self._tells_anew and self.is_registered and not self.attempts.is_launching:
            self._tells_anew = False
            yield from self._say_hello(now_s)
        if self.is_registered and now_s >= self._heartbeat_at_s:
            yield self._heartbeat(now_s)
        if self.is_registered and now_s >= self._repeat_at_s:
            yield from self._report_ends(now_s)
        yield from self.attempts.hard_kills(now_s)

    def _heartbeat(self, now_s: float) -> Send:
        self._heartbeat_at_s = now_s + self._heartbeat_s
        beat = Heartbeat(name=self._hello.name, unhealthy=self._hello.unhealthy)
        return Send(beat, self._lease.ask(now_s))

    def _report_ends(self, now_s: float) -> Iterator[Effect]:
        self._repeat_at_s = now_s + ENDED_REPEAT_S
        for attempt in self.attempts.of_cluster(self.cluster):
            if attempt.phase is Phase.ENDED:
                yield Send(attempt.end_report())

    def _say_hello(self, now_s: float) -> Iterator[Effect]:
        self.is_registered = False
        self.attempts.drop_waiting()
        self._hello_at_s = now_s + HELLO_RETRY_S
        if not self.is_checked:
            return
        own = self.attempts.of_cluster(self.cluster)
        reports = [attempt.report() for attempt in own if not attempt.is_forgotten]
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
        )
        yield Send(hello, self._lease.ask(now_s))

    def _obey(self, epoch: int) -> Iterator[Effect]:
        if epoch > self.epoch:
            self.epoch = epoch
            yield Persist(self.cluster, epoch)

    def _key(self, job: int, attempt: int, rank: int) -> AttemptKey:
        return AttemptKey(job, attempt, rank, self.cluster)
