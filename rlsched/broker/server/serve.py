"""The broker's loop, which connects the state machine with sockets, clock and journal."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

import rlsched
from rlsched.broker.base.entries import BrokerStarted, ChosenPolicy
from rlsched.broker.base.pauses import ShortPauses
from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.broker.base.timing import Histogram
from rlsched.broker.compaction.compacting import Compacting
from rlsched.broker.events import (
    ClientAsked,
    Due,
    Event,
    Intake,
    NodeSaid,
    Tick,
)
from rlsched.broker.forecasts.fitting import Fits
from rlsched.broker.forecasts.forecasting import Forecasting
from rlsched.broker.journal.backup import begin_anew
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import ADDRESS_FILE, JournalMark
from rlsched.broker.journal.records import STORE_FOLDER, RecordLog
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.journal.snapshot_keeper import SnapshotKeeper
from rlsched.broker.journal.superseded import Superseded
from rlsched.broker.machine.machine import Machine
from rlsched.broker.machine.store_events import as_it_stands
from rlsched.broker.queries.forecasts import NO_FORECASTS
from rlsched.broker.queries.loop_metrics import LoopMetrics, TimedCommits, journal_report
from rlsched.broker.queries.memory import RecordMemory
from rlsched.broker.queries.report import cluster_curves, drift_curves, forecast_curves
from rlsched.broker.server.disk import RETRY_S, Disk, PatientCommits
from rlsched.broker.server.holding import DeferredMessages
from rlsched.broker.server.performing import perform
from rlsched.broker.server.power_commands import PowerCommands
from rlsched.broker.server.prices import PriceSource
from rlsched.broker.server.settings import BrokerSettings, forecast_setup, warmed_up
from rlsched.broker.server.timekeeping import BrokerClock, ahead_line
from rlsched.broker.standby.shipping import Shipping
from rlsched.broker.standby.warm import Warm
from rlsched.broker.state.broker_state import BrokerState
from rlsched.decide.drift import unlike
from rlsched.decide.own import content_of, is_own
from rlsched.decide.policies.files import missing_code
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError, JournalError, JournalFullError, RlschedError
from rlsched.files.space import low_disk_mib
from rlsched.transport.keys import KeyHome
from rlsched.transport.router import Heard, Transport, check_address
from rlsched.wire.messages import (
    ClientReply,
    Heartbeat,
    LaterBroker,
    Ok,
    ReadJournal,
    Refused,
    SayHello,
    Serving,
    SetPolicy,
)
from rlsched.wire.states import QUEUED

MAX_BATCH = 128
"""Maximum number of messages in a turn of the loop; further messages wait for the next turn."""
POLL_MS = 100
REST_S = 0.004
"""Pause after a turn with only heartbeats, seconds, so that the next turn processes many of them at once."""
TICK_S = 0.25
FLUSH_S = 5.0
_OF_THE_LOOP = (SetPolicy, ReadJournal, LaterBroker)
"""Messages that the loop answers without the state machine, except a `LaterBroker` from a node."""
QUESTIONS_S = 0.005
"""Maximum time for answers to questions in a turn, seconds; further questions wait for the next turn."""


class Broker:
    """A broker. After construction, it is ready to serve, and `ADDRESS_FILE` has its address for clients.

    Args:
        open_journal: Function that opens the journal.
        say: Function that logs a line.
        warm: Policy and state of a standby that takes over; None: they are loaded here.
        doing: Function that is called with a description of each slow step of the start.

    Raises:
        InputError: the policy, the address, the keys, or the directory is invalid.
        JournalError: the journal cannot be used.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        open_journal: Callable[[Path], Journal] = Journal,
        say: Callable[[str], None] = lambda _: None,
        warm: Warm | None = None,
        doing: Callable[[str], object] = lambda _: None,
    ) -> None:
        if not 0.0 <= settings.speed_energy <= 1.0:
            raise InputError(f"--speed-energy {settings.speed_energy:g}: expected 0 (speed) to 1 (energy)")
        self.settings = settings
        self._prices = PriceSource(settings.energy, say)
        self._soft_errors = SoftErrors(say)
        self._stopping = False
        self._serving = False
        self._intake = self._warned = ""
        self._later_epoch = 0
        self._up_since_s: float | None = None
        self._ticked_s = self._flushed_s = 0.0
        self._drawn_decisions = 0
        self._decisions, self._turns = Histogram(), Histogram()
        self._disk = Disk(settings.directory, settings.min_free_mib, self._soft_errors.log_line)
        self._disk.make_room()
        self._doing = doing
        self._given = _digest(settings)
        KeyHome(settings.keys).broker()  # create the keys before the slow compilation: tokens need them
        path = settings.directory / JOURNAL_FILE
        self._mark = JournalMark(path)
        if settings.new_cluster:
            self._give_up(path)
        is_new = not path.exists() or not path.stat().st_size
        if is_new:  # a broker that cannot serve leaves no journal
            self._mark.check_new()
            check_address(settings.address)
            warm = self._warm_up(settings) if warm is None else warm
        with ExitStack() as opened:
            self._journal = open_journal(path)
            opened.callback(self._journal.close)
            self._mark.check(self._journal)
            opened.callback(self._mark.close)
            if not is_new:  # after the check that no other broker has the journal open
                check_address(settings.address)
            self._compacting = Compacting(
                self._journal, settings.keeps, settings.ranks.half_life_s, self._soft_errors.log_line
            )
            opened.callback(self._compacting.close)
            self._superseded = Superseded(settings.directory)
            patient = PatientCommits(
                self._journal, self._disk, self._wait_for_space, self._soft_errors.log_line
            )
            self._commits = TimedCommits(patient)
            self._log = RecordLog(
                settings.directory / STORE_FOLDER,
                settings.logdir,
                self._soft_errors,
                settings.keep_decisions_mib << 20,
                settings.keep_decisions_days,
            )
            opened.callback(self._log.close)
            self._forecasting = self._new_forecasting(settings)
            if self._forecasting is not None:
                opened.callback(self._forecasting.close)
            self._power = PowerCommands(settings.power)
            self._machine, self._fits, self._held = self._begun_as_chosen(warm)
            self._code = _code(self.settings)
            if self._forecasting is not None and self.settings is not settings:
                self._forecasting.use(forecast_setup(self.settings))
            opened.callback(lambda: self._fits.close())
            self._log.begin_with(as_it_stands(self._machine.state))
            self._superseded.check(self._machine.state.epoch)
            self._transport = Transport(settings.address, KeyHome(settings.keys), settings.senders)
            self._shipping = Shipping(
                self._journal,
                KeyHome(settings.keys).access,
                self._transport.reply,
                self._soft_errors.log_line,
            )
            opened.callback(self._transport.close)
            self._say_who_serves()
            self._step([])
            self._begin_mark()
            self._publish_address()
            self._opened = opened.pop_all()

    def _begun_as_chosen(self, warm: Warm | None) -> tuple[Machine, Fits, DeferredMessages]:
        """Begin an epoch with the policy last set by `rlsched policy set`, or with `--policy`.

        `--policy` is used if no policy was set, or if the set policy can no longer be loaded. Return the
        result of `_start_epoch`.
        """
        chosen = self._journal.chosen()
        if chosen is not None and chosen.instead_of == self._given:
            try:
                settings = _with_policy(self.settings, chosen)
                begun = self._start_epoch(settings, self._warm_up(settings), chosen)
            except (RlschedError, ImportError) as error:
                if isinstance(error, JournalError):
                    raise
                self._soft_errors.log_line(
                    f"policy {chosen.name!r}, which `rlsched policy set` chose, cannot be served any more: "
                    f"{error}; the policy of --policy decides instead"
                )
            else:
                self.settings = settings
                return begun
        return self._start_epoch(self.settings, warm)

    def _start_epoch(
        self, settings: BrokerSettings, warm: Warm | None = None, chosen: ChosenPolicy | None = None
    ) -> tuple[Machine, Fits, DeferredMessages]:
        """Begin a new epoch: recover the state from the journal, and create a state machine.

        Returns:
            The state machine, the background fits of its predictor, and the store of deferred messages.
        """
        warm = self._warm_up(settings) if warm is None else warm
        scheduler, fallback = warm.scheduler, warm.fallback
        state = self._recover(warm)
        goes_on = chosen is not None and chosen == state.chosen
        self._snapshots = SnapshotKeeper(self._journal, self._soft_errors.log_line)
        self._clock = BrokerClock(state.now_s)
        self._clock_line = ahead_line(self._journal.path, state.now_s - time.time())
        started = BrokerStarted(
            epoch=state.epoch + 1,
            cluster=state.identity or secrets.token_hex(8),
            policy=scheduler.name,
            fallback=fallback,
            version=rlsched.__version__,
            order=scheduler.order.name,
            speed_energy=settings.speed_energy,
            shares=settings.shares,
            chosen=None if goes_on else chosen,
            goes_on=goes_on,
        )
        machine = Machine(
            state,
            scheduler,
            started,
            self._clock.read(),
            ended=self._journal.ended,
            limits=settings.limits,
            ranks=settings.ranks,
            memory=RecordMemory(self._log.last),
            soft_errors=self._soft_errors,
            loop_metrics=self._loop_metrics,
            forecasts=self._forecasting or NO_FORECASTS,
            sleep=None if settings.power is None else settings.power.sleep,
            up_since_s=self._up_since_s,
            sharing=settings.sharing,
            prices=self._prices.table,
        )
        return (
            machine,
            Fits(state.predictions, self._soft_errors.log_line),
            DeferredMessages(state.knows_token, _event),
        )

    def _warm_up(self, settings: BrokerSettings) -> Warm:
        self._doing(f"it loads policy {Policy.of(settings.policy).name}")
        return warmed_up(settings)

    def _set_policy(self, asked: SetPolicy) -> ClientReply:
        """Change the policy. As at a restart, recover the state from the journal, and begin a new epoch."""
        if self._intake:
            return Refused(message=f"another policy cannot be set now: {self._intake}")
        if refusal := asked.too_large():
            return Refused(message=refusal)
        try:
            asked_for = ChosenPolicy(
                policy=asked.policy,
                name=asked.name,
                fallback=asked.fallback,
                fallback_name=asked.fallback_name,
                instead_of=self._given,
            )
            settings = _with_policy(self.settings, asked_for)
            chosen = None if _digest(settings) == self._given else asked_for
            code = _code(settings)  # code can change under the same name
            if chosen == self._machine.state.chosen and code == self._code:
                return Ok()  # a repeated request, because compiling delayed the reply
            self._log.flush()
            self._up_since_s = self._machine.up_since_s
            machine, fits, held = self._start_epoch(settings, chosen=chosen)
        except RlschedError as error:
            return Refused(message=str(error))
        self._fits.close()
        self.settings, self._machine, self._fits, self._held = settings, machine, fits, held
        self._code = code
        if self._forecasting is not None:
            self._forecasting.use(forecast_setup(settings))
        self._transport.drop_nodes()
        self._say_who_serves()
        self._step([])
        with suppress(InputError):  # if the mark cannot be written, the earlier mark stays
            self._begin_mark()
        self._soft_errors.log_line(self.ready_line())
        return Ok()

    def _recover(self, warm: Warm) -> BrokerState:
        self._doing("it reads its journal")
        try:
            return warm.catch_up(self._journal, self._soft_errors.log_line)
        except JournalError as error:
            if str(error).startswith(str(self._journal.path)):
                raise
            raise JournalError(f"{self._journal.path}: {error}") from error

    def _say_who_serves(self) -> None:
        started = self._machine.started
        self._log.decides(Policy.of(self.settings.policy), self._machine.now_s)
        self._shipping.began(started.cluster, started.epoch)
        self._transport.says_hello = SayHello(cluster=started.cluster, epoch=started.epoch)

    def _give_up(self, path: Path) -> None:
        kept = begin_anew(path)
        self._soft_errors.log_line(f"journal: a new cluster begins; the earlier journal: {kept or 'none'}")

    def _begin_mark(self) -> None:
        """Write the mark: the file that records the last commit of this broker's journal."""
        started = self._machine.started
        try:
            self._mark.begin(self._journal, started.cluster, started.epoch)
        except OSError as error:
            raise InputError(f"{self.settings.directory}: cannot write here: {error.strerror}") from error

    def _publish_address(self) -> None:
        path = self.settings.directory / ADDRESS_FILE
        try:
            path.write_text(self.address + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot write the broker's address: {error.strerror}") from error

    @property
    def address(self) -> str:
        """Address at which the broker listens."""
        return self._transport.address

    def clock_line(self) -> str:
        """Return a warning if the journal's last time is ahead of this machine's clock, else ""."""
        return self._clock_line

    def ready_line(self) -> str:
        """Return the line that is printed when the broker is ready, for users and scripts."""
        state = self._machine.state
        live = list(state.job_of_seq.values())
        queued = sum(job.state == QUEUED for job in live)
        return (
            f"rlsched broker ready at {self.address} (policy {self._machine.scheduler.name}, "
            f"predictions by {state.predictions.kind}, {self._dial()}"
            f"epoch {state.epoch}, jobs: {len(live) - queued} started, {queued} waiting, "
            f"journal {self._journal.path})"
        )

    def _dial(self) -> str:
        weight = self.settings.speed_energy
        shares = "jobs share GPUs, " if self.settings.shares else ""
        return shares + (f"energy counts {weight:g} against time, " if weight > 0.0 else "")

    def serve(self) -> None:
        """Serve until `stop` or `supersede` is called. Jobs continue to run afterwards."""
        self._serving = True
        pauses = ShortPauses()
        while not self._stopping:
            heard, emptied = self._transport.receive(0 if self._machine.backlog else POLL_MS, MAX_BATCH)
            for_itself = [one for one in heard if _is_the_loops(one)]
            events: list[Event] = [
                *self._held.take(),
                *self._power.step(),
                *self._prices.step(self._clock.peek()),
                *(_event(one) for one in heard if not for_itself or not _is_the_loops(one)),
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
            for one in for_itself:
                self._answer_itself(one)
            self._shipping.step()
            self._superseded.stop_for(self._machine.later_epoch(), "most nodes obey it")
            self._superseded.stop_for(self._later_epoch, "it reported itself")
            self._log.step()
            self._fits.step(self._machine.now_s)
            self._step_forecasts()
            self._compacting.step(self._machine.now_s, is_quiet=not heard)
            if self._snapshots.is_snapshot_due(is_quiet=not heard):
                self._keep_snapshot()
            pauses.step()
            if emptied and nobody_waits(heard):
                time.sleep(REST_S)
        self._keep_snapshot()

    def _new_forecasting(self, settings: BrokerSettings) -> Forecasting | None:
        if not settings.forecaster:
            return None
        after_s = settings.forecast_after_s
        return Forecasting(forecast_setup(settings), self._soft_errors.log_line, after_s=after_s)

    def _step_forecasts(self) -> None:
        """Store forecasts with known outcomes, and send the forecaster's answers to clients."""
        if self._forecasting is None:
            return
        seen, replies = self._forecasting.step()
        if seen:
            self._log.add([], seen)
        for reply in replies:
            self._transport.reply(reply.peer, reply.request, reply.message)

    def _keep_snapshot(self) -> None:
        self._snapshots.keep(self._machine.state, self._machine.scheduler)

    @property
    def start_fact(self) -> BrokerStarted:
        """The fact (journal entry) that began the present epoch."""
        return self._machine.started

    def supersede(self, epoch: int) -> None:
        """Make `serve` raise `SupersededError`: a broker with the higher `epoch` serves. Thread-safe."""
        self._later_epoch = epoch

    def stop(self) -> None:
        """Make `serve` return after the current batch."""
        self._stopping = True

    def close(self) -> None:
        """Close the address, the journal and the records."""
        self._opened.close()

    def _wait_for_space(self, error: JournalFullError) -> bool:
        """Receive messages while a batch waits for disk space.

        Return False if the broker must not wait, because it has been stopped or does not serve yet.
        """
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
        """Answer a message of a type in `_OF_THE_LOOP`, without the state machine."""
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
                    self._superseded.stop_for(epoch, "it reported itself")

    def _step(self, events: list[Event]) -> None:
        now_s, due_s = self._clock.read(), self._machine.due_s()
        if self._machine.now_s < due_s < now_s:  # a rule that decides at ticks needs the exact time
            self._handle([Due()], due_s)
        self._handle([*events, Due()] if due_s <= now_s else events, now_s)

    def _handle(self, events: list[Event], now_s: float) -> None:
        began_s = time.perf_counter()
        effects = self._machine.handle_batch(events, now_s)
        for kept in perform(effects, now_s, self._commits, self._transport, self._power.order):
            self._log.add(kept.records, kept.happened)
            for record in kept.records:
                self._decisions.add(record.took_us / 1e6)
        self._mark.record_commit(self._journal)
        self._turns.add(time.perf_counter() - began_s)
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self._flushed_s = time.monotonic()
            self._warn_unlike()
            if self.settings.logdir is not None:
                self._draw_curves(now_s)
            self._log.flush()

    def _warn_unlike(self) -> None:
        """Log a warning, once per policy, if the policy was trained on other kinds of clusters."""
        scheduler = self._machine.scheduler
        if scheduler.familiar is None or self._warned == scheduler.policy_id:
            return
        found = unlike(scheduler.familiar, self._machine.state.cluster)
        if found:
            self._warned = scheduler.policy_id
            self._soft_errors.log_line(
                f"policy {scheduler.name} was not trained on such a cluster: {'; '.join(found)}"
            )

    def _draw_curves(self, now_s: float) -> None:
        """Add a point to the TensorBoard curves of run-time predictions and of the drift of policy inputs.

        If there were decisions since the previous call, also add a point to the curves of the cluster and of
        the forecasts.
        """
        state = self._machine.state
        try:
            curves = state.predictions.curves(now_s) | drift_curves(self._machine.scheduler)
            if state.cluster.decisions != self._drawn_decisions:
                self._drawn_decisions = state.cluster.decisions
                curves |= cluster_curves(state.cluster)
                curves |= forecast_curves((self._forecasting or NO_FORECASTS).report())
        except Exception as error:  # a curve that cannot be drawn is left out
            self._soft_errors.count("drawn", "the curves of predictions, drift and the cluster", error)
        else:
            self._log.add_scalars(state.cluster.decisions, curves)

    def _answer(self) -> None:
        """Answer questions for about `QUESTIONS_S`, after all other output of this turn was sent."""
        until_s = time.perf_counter() + QUESTIONS_S
        effects = self._machine.answer(lambda: time.perf_counter() < until_s)
        perform(effects, self._machine.now_s, self._commits, self._transport)

    def _loop_metrics(self) -> LoopMetrics:
        return LoopMetrics(
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


def _with_policy(settings: BrokerSettings, chosen: ChosenPolicy) -> BrokerSettings:
    """Return the settings with the policy and fallback that `rlsched policy set` has set (`chosen`).

    Raises:
        InputError: a setting is unknown or invalid, or a policy's Python file is not on this machine.
    """
    policy = Policy.parse(chosen.policy, name=chosen.name)
    fallback = Policy.parse(chosen.fallback, name=chosen.fallback_name) if chosen.fallback else None
    for one in (policy, fallback):
        if one is not None and (file := missing_code(one)):
            raise InputError(
                f"policy {one.name!r} is Python code, which is not sent: put its file on the broker's "
                f"machine, {socket.gethostname()}, as {file}"
            )
    return msgspec.structs.replace(settings, policy=policy, fallback=fallback)


def _digest(settings: BrokerSettings) -> str:
    """Return a text that identifies the policy and fallback in the settings: their digests."""
    both = (settings.policy, settings.fallback)
    return " ".join("-" if one is None else Policy.of(one).digest for one in both)


def _code(settings: BrokerSettings) -> list[str]:
    """Return the digests of the Python files of the policy and the fallback."""
    found = []
    for one in (settings.policy, settings.fallback):
        rule = "" if one is None else Policy.of(one).settings.rule
        if is_own(rule):
            with suppress(OSError):  # loading the policy reports the error
                found.append(content_of(rule))
    return found


def nobody_waits(heard: Sequence[Heard]) -> bool:
    """Return whether there are messages and all of them are heartbeats."""
    return bool(heard) and all(isinstance(one.envelope.message, Heartbeat) for one in heard)


def _is_the_loops(heard: Heard) -> bool:
    message = heard.envelope.message
    return isinstance(message, _OF_THE_LOOP) and (
        not isinstance(message, LaterBroker) or heard.peer.role != "node"
    )


def _event(heard: Heard) -> Event:
    message, request = heard.envelope.message, heard.envelope.request
    if heard.peer.role == "node":
        return NodeSaid(heard.peer.name, request, message, time.time())  # type: ignore[arg-type]
    return ClientAsked(heard.route, request, message, heard.peer)  # type: ignore[arg-type]
