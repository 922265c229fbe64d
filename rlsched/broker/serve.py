"""The broker's loop: sockets and clock around the state machine, one journal commit a batch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

import rlsched
from rlsched.broker.book import Book
from rlsched.broker.disk import RETRY_S, Disk, PatientCommits
from rlsched.broker.entries import BrokerStarted
from rlsched.broker.events import (
    ClientAsked,
    DropNode,
    Due,
    Effect,
    Event,
    Intake,
    NodeSaid,
    Records,
    Reply,
    SendNode,
    Tick,
)
from rlsched.broker.events import Journal as Commit
from rlsched.broker.fitting import Fits
from rlsched.broker.holding import Held
from rlsched.broker.journal import Journal
from rlsched.broker.keys import KeyHome
from rlsched.broker.limits import Limits
from rlsched.broker.machine import Machine
from rlsched.broker.memory import RecordMemory
from rlsched.broker.pauses import ShortPauses
from rlsched.broker.policy import load_policy
from rlsched.broker.priorities import Ranks
from rlsched.broker.records import RECORDS_FILE, RecordLog
from rlsched.broker.replay import JOURNAL_FILE
from rlsched.broker.report import drift_curves
from rlsched.broker.shipping import Shipping
from rlsched.broker.snapshot_keeper import SnapshotKeeper
from rlsched.broker.space import MIN_FREE_MIB, low_disk_mib
from rlsched.broker.superseded import Superseded
from rlsched.broker.timekeeping import Clock, ahead_line
from rlsched.broker.timing import Histogram
from rlsched.broker.transport import Heard, Transport
from rlsched.broker.troubles import Troubles
from rlsched.broker.vitals import CommitsEntries, TimedCommits, Vitals, journal_report
from rlsched.broker.warm import Warm
from rlsched.decide.drift import unlike
from rlsched.decide.policy import Policy
from rlsched.errors import InputError, JournalError, JournalFullError, RlschedError
from rlsched.wire.messages import (
    BrokerToNode,
    ClientReply,
    LaterBroker,
    Ok,
    ReadJournal,
    Refused,
    SayHello,
    Serving,
    SetPolicy,
)

ADDRESS_FILE = "address"
MAX_BATCH = 128
"""Messages that a turn takes; of a flood of them others wait for a turn."""
POLL_MS = 100
TICK_S = 0.25
FLUSH_S = 5.0
QUESTIONS_S = 0.005
"""Time for questions in a turn of the loop; those that it is too short for wait for the next."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker runs.

    Attributes:
        address: `tcp://HOST:PORT`; port 0 takes a free one.
        directory: Where journal and records are kept.
        keys: The key directory.
        policy: Who decides, as `Policy.of` reads it.
        fallback: The rule behind it, likewise; None: see `load_policy`.
        decision_budget_ms: Time that one decision may take.
        speed_energy: What energy counts against time for jobs that do not say it themselves, 0 to 1.
        prediction: `running-mean` or `hedge`; None: see `Predictions`.
        logdir: Folder for TensorBoard, None for none.
        limits: Leases and timeouts.
        ranks: Priorities and fair share.
        min_free_mib: New jobs are refused while the journal's disk has less free space, MiB.
        seed: Seed of the policy's draws.
    """

    address: str
    directory: Path
    keys: Path
    policy: Policy | str = "tuned"
    fallback: Policy | str | None = None
    decision_budget_ms: float = 100.0
    speed_energy: float = 0.0
    prediction: str | None = None
    logdir: Path | None = None
    limits: Limits = Limits()
    ranks: Ranks = Ranks()
    min_free_mib: int = MIN_FREE_MIB
    seed: int = 0


def warmed_up(settings: Settings) -> Warm:
    """The policy of these settings, loaded and compiled, before the first entry of any journal.

    Raises:
        InputError: it cannot be loaded, or serve.
    """
    scheduler, fallback = load_policy(
        Policy.of(settings.policy),
        None if settings.fallback is None else Policy.of(settings.fallback),
        settings.decision_budget_ms,
        seed=settings.seed,
        chooses_clocks=settings.speed_energy > 0.0,
    )
    return Warm(scheduler, fallback, settings.prediction, settings.ranks.half_life_s)


class SendsMessages(Protocol):
    """What `perform` needs of a transport."""

    def reply(self, route: bytes, request: int, message: ClientReply) -> None:
        """Answer a client."""

    def send_node(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Tell a node."""

    def drop_node(self, node: str) -> None:
        """Forget a node's connection."""


def perform(
    effects: Sequence[Effect], now_s: float, journal: CommitsEntries, transport: SendsMessages
) -> list[Records]:
    """Do what the machine says, in its order: the commit first. Returns the records, to be kept later.

    Raises:
        JournalError: the commit failed; nothing has left.
    """
    later: list[Records] = []
    for effect in effects:
        match effect:
            case Commit(entries=entries, over=over):
                journal.commit(entries, now_s, over)
            case Reply(peer=peer, request=request, message=answer):
                transport.reply(peer, request, answer)
            case SendNode(node=node, message=order, request=request):
                transport.send_node(node, order, request)
            case DropNode(node=node):
                transport.drop_node(node)
            case Records():
                later.append(effect)
    return later


class Broker:
    """A broker, ready to serve once it is made: clients find its address in `ADDRESS_FILE` by then.

    Args:
        settings: How it runs.
        open_journal: Opens the journal; tests hand in one that fails on demand.
        say: Gets lines for the log.
        warm: Policy and book of a standby that takes the journal over; None: both are made here.

    Raises:
        InputError: the policy, the address, the keys, or the directory.
        JournalError: the journal.
    """

    def __init__(
        self,
        settings: Settings,
        open_journal: Callable[[Path], Journal] = Journal,
        say: Callable[[str], None] = lambda _: None,
        warm: Warm | None = None,
    ) -> None:
        if not 0.0 <= settings.speed_energy <= 1.0:
            raise InputError(f"--speed-energy {settings.speed_energy:g}: expected 0 (speed) to 1 (energy)")
        self.settings = settings
        self._troubles = Troubles(say)
        self._stopping = False
        self._serving = False
        self._intake = self._warned = ""
        self._later_epoch = 0
        self._ticked_s = self._flushed_s = 0.0
        self._decisions, self._turns = Histogram(), Histogram()
        self._disk = Disk(settings.directory, settings.min_free_mib, self._troubles.say)
        self._disk.make_room()
        with ExitStack() as opened:
            self._journal = open_journal(settings.directory / JOURNAL_FILE)
            opened.callback(self._journal.close)
            self._superseded = Superseded(settings.directory)
            patient = PatientCommits(self._journal, self._disk, self._wait_for_space, self._troubles.say)
            self._commits = TimedCommits(patient)
            self._log = RecordLog(settings.directory / RECORDS_FILE, settings.logdir, self._troubles)
            opened.callback(self._log.close)
            self._machine, self._fits, self._held = self._begun(settings, warm)
            opened.callback(lambda: self._fits.close())
            self._superseded.check(self._machine.book.epoch)
            self._transport = Transport(settings.address, KeyHome(settings.keys))
            self._shipping = Shipping(
                self._journal, KeyHome(settings.keys).access, self._transport.reply, self._troubles.say
            )
            opened.callback(self._transport.close)
            self._say_who_serves()
            self._step([])
            self._publish_address()
            self._opened = opened.pop_all()

    def _begun(self, settings: Settings, warm: Warm | None = None) -> tuple[Machine, Fits, Held]:
        """A state machine over the journal as it is, in an epoch of its own."""
        warm = warmed_up(settings) if warm is None else warm
        scheduler, fallback = warm.scheduler, warm.fallback
        book = self._recovered(warm)
        self._snapshots = SnapshotKeeper(self._journal, self._troubles.say)
        self._clock = Clock(book.now_s)
        self._clock_line = ahead_line(self._journal.path, book.now_s - time.time())
        started = BrokerStarted(
            epoch=book.epoch + 1,
            cluster=book.identity or secrets.token_hex(8),
            policy=scheduler.name,
            fallback=fallback,
            version=rlsched.__version__,
            order=scheduler.order.name,
            speed_energy=settings.speed_energy,
        )
        machine = Machine(
            book,
            scheduler,
            started,
            self._clock.read(),
            ended=self._journal.ended,
            limits=settings.limits,
            ranks=settings.ranks,
            memory=RecordMemory(self._log.last),
            troubles=self._troubles,
            vitals=self._vitals,
        )
        return (
            machine,
            Fits(book.predictions, self._troubles.say),
            Held(book.knows_token, _event),
        )

    def _set_policy(self, asked: SetPolicy) -> ClientReply:
        """Go on as a broker that was started with another policy: by the journal, in an epoch of its own."""
        if self._intake:
            return Refused(message=f"another policy cannot be set now: {self._intake}")
        try:
            settings = msgspec.structs.replace(
                self.settings,
                policy=Policy.parse(asked.policy, name=asked.name),
                fallback=Policy.parse(asked.fallback, name=asked.fallback_name) if asked.fallback else None,
            )
            self._log.flush()
            machine, fits, held = self._begun(settings)
        except RlschedError as error:
            return Refused(message=str(error))
        self._fits.close()
        self.settings, self._machine, self._fits, self._held = settings, machine, fits, held
        self._transport.drop_nodes()
        self._say_who_serves()
        self._step([])
        self._troubles.say(self.ready_line())
        return Ok()

    def _recovered(self, warm: Warm) -> Book:
        try:
            return warm.caught_up(self._journal, self._troubles.say)
        except JournalError as error:
            if str(error).startswith(str(self._journal.path)):
                raise
            raise JournalError(f"{self._journal.path}: {error}") from error

    def _say_who_serves(self) -> None:
        started = self._machine.started
        self._shipping.began(started.cluster, started.epoch)
        self._transport.says_hello = SayHello(cluster=started.cluster, epoch=started.epoch)

    def _publish_address(self) -> None:
        path = self.settings.directory / ADDRESS_FILE
        try:
            path.write_text(self.address + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot write the broker's address: {error.strerror}") from error

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._transport.address

    def clock_line(self) -> str:
        """What is to be said of this machine's clock, "" if nothing."""
        return self._clock_line

    def ready_line(self) -> str:
        """One line for people and for scripts."""
        book = self._machine.book
        live = list(book.job_of_seq.values())
        queued = sum(job.state == "queued" for job in live)
        return (
            f"rlsched broker ready at {self.address} (policy {self._machine.scheduler.name}, "
            f"predictions by {book.predictions.kind}, {self._dial()}"
            f"epoch {book.epoch}, {len(live) - queued} jobs started, {queued} waiting, "
            f"journal {self._journal.path})"
        )

    def _dial(self) -> str:
        weight = self.settings.speed_energy
        return f"energy counts {weight:g} against time, " if weight > 0.0 else ""

    def serve(self) -> None:
        """Serve until `stop` or a signal; jobs go on running afterwards."""
        self._serving = True
        pauses = ShortPauses()
        while not self._stopping:
            heard, emptied = self._transport.receive(0 if self._machine.backlog else POLL_MS, MAX_BATCH)
            events: list[Event] = [
                *self._held.take(),
                *(_event(one) for one in heard if not _is_the_loops(one)),
            ]
            if self._disk.refusal() != self._intake:
                self._intake = self._disk.refusal()
                events.append(Intake(self._intake))
            elapsed_s = time.monotonic() - self._ticked_s
            if (emptied and elapsed_s >= TICK_S) or elapsed_s >= self.settings.limits.lease_s / 2:
                self._ticked_s = time.monotonic()
                events.append(Tick())
            if events or self._clock.peek() >= self._machine.due_s():
                self._step(events)
            self._answer()
            for one in filter(_is_the_loops, heard):
                self._answer_itself(one)
            self._shipping.step()
            self._superseded.by(self._machine.later_epoch(), "most nodes obey it")
            self._superseded.by(self._later_epoch, "it says so")
            self._fits.step(self._machine.now_s)
            if self._snapshots.due(is_quiet=not heard):
                self._keep_snapshot()
            pauses.step()
        self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        self._snapshots.keep(self._machine.book, self._machine.scheduler)
        self._log.mark()

    @property
    def started(self) -> BrokerStarted:
        """The fact that began its epoch."""
        return self._machine.started

    def supersede(self, epoch: int) -> None:
        """A broker of a higher epoch serves: `serve` ends with a `SupersededError`. Any thread may say so."""
        self._later_epoch = epoch

    def stop(self) -> None:
        """Let `serve` return after the batch in hand."""
        self._stopping = True

    def close(self) -> None:
        """Let go of address, journal and records."""
        self._opened.close()

    def _wait_for_space(self, error: JournalFullError) -> bool:
        """Go on listening while a batch is held; False: do not wait."""
        if not self._serving or self._stopping:
            return False
        heard, _ = self._transport.receive(int(1000 * RETRY_S), MAX_BATCH)
        for one in heard:
            if _is_the_loops(one) and not isinstance(one.envelope.message, SetPolicy):
                self._answer_itself(one)
            else:
                self._held.hear(one, self._transport, str(error))
        self._shipping.step()
        return True

    def _answer_itself(self, heard: Heard) -> None:
        """What is about journal and policy, and not about jobs."""
        route, request, message = heard.route, heard.envelope.request, heard.envelope.message
        match message:
            case SetPolicy():
                self._transport.reply(route, request, self._set_policy(message))
            case ReadJournal():
                self._shipping.ask(route, request, message)
            case LaterBroker(cluster=cluster, epoch=epoch):
                started = self._machine.started
                self._transport.reply(route, request, Serving(cluster=started.cluster, epoch=started.epoch))
                if cluster == started.cluster and epoch > started.epoch:
                    self._superseded.by(epoch, "it says so")

    def _step(self, events: list[Event]) -> None:
        now_s, due_s = self._clock.read(), self._machine.due_s()
        if self._machine.now_s < due_s < now_s:  # a rule that decides at ticks is asked at the very tick
            self._handle([Due()], due_s)
        self._handle([*events, Due()] if due_s <= now_s else events, now_s)

    def _handle(self, events: list[Event], now_s: float) -> None:
        began_s = time.perf_counter()
        effects = self._machine.handle_batch(events, now_s)
        for kept in perform(effects, now_s, self._commits, self._transport):
            self._log.add(kept.records)
            for record in kept.records:
                self._decisions.add(record.took_us / 1e6)
        self._turns.add(time.perf_counter() - began_s)
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self._flushed_s = time.monotonic()
            self._warn_unlike()
            if self.settings.logdir is not None:
                self._draw_predictions(now_s)
            self._log.flush()

    def _warn_unlike(self) -> None:
        """Say once for each policy in which ways the cluster is none that it met in training."""
        scheduler = self._machine.scheduler
        if scheduler.familiar is None or self._warned == scheduler.policy_id:
            return
        found = unlike(scheduler.familiar, self._machine.book.cluster)
        if found:
            self._warned = scheduler.policy_id
            self._troubles.say(
                f"policy {scheduler.name} was not trained on such a cluster: {'; '.join(found)}"
            )

    def _draw_predictions(self, now_s: float) -> None:
        book = self._machine.book
        try:
            curves = book.predictions.curves(now_s) | drift_curves(self._machine.scheduler)
        except Exception as error:  # a curve that cannot be drawn is left out
            self._troubles.count("drawn", "the curves of predictions and drift", error)
        else:
            self._log.add_scalars(book.cluster.decisions, curves)

    def _answer(self) -> None:
        """Answer questions for a while, once everything else of this turn has left."""
        until_s = time.perf_counter() + QUESTIONS_S
        effects = self._machine.answer(lambda: time.perf_counter() < until_s)
        perform(effects, self._machine.now_s, self._commits, self._transport)

    def _vitals(self) -> Vitals:
        """What is asked for in reports."""
        return Vitals(
            address=self.address,
            journal=journal_report(
                self._journal.path, self._commits.last_ms, low_disk_mib(self.settings.min_free_mib)
            ),
            records_kept=self._log.kept,
            timings={
                "decision": self._decisions.timing(),
                "commit": self._commits.times.timing(),
                "turn": self._turns.timing(),
            },
            connections=dict(self._transport.counts),
        )


def _is_the_loops(heard: Heard) -> bool:
    message = heard.envelope.message
    return isinstance(message, SetPolicy | ReadJournal) or (
        isinstance(message, LaterBroker) and heard.peer.role != "node"
    )


def _event(heard: Heard) -> Event:
    message, request = heard.envelope.message, heard.envelope.request
    if heard.peer.role == "node":
        return NodeSaid(heard.peer.name, request, message, time.time())  # type: ignore[arg-type]
    return ClientAsked(heard.route, request, message, heard.peer)  # type: ignore[arg-type]
