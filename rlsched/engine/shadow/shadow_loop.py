"""A shadow's loop: connects the state machine with journal, store of decisions, notes, clock and Slurm."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

import rlsched
from rlsched.broker.base.entries import BrokerStarted
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.broker.events import Effect
from rlsched.broker.forecasts.fitting import Fits
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.records import STORE_FOLDER, RecordLog
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.journal.snapshot_keeper import SnapshotKeeper
from rlsched.broker.machine.machine import Machine
from rlsched.broker.server.performing import perform
from rlsched.broker.server.settings import BrokerSettings, warmed_up
from rlsched.broker.state.jobs import place_of
from rlsched.decide.policies.policy import Policy
from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.engine.facts import SlurmError
from rlsched.engine.reader import Reader
from rlsched.engine.shadow.follows import Follows, Wish, places_of
from rlsched.engine.shadow.mirror import Mirror, is_first_offer, key_of
from rlsched.engine.shadow.notes import Began, Notes, Watched, read_notes
from rlsched.engine.shadow.shadow import Shadow
from rlsched.errors import InputError
from rlsched.wire.messages import BrokerToNode, ClientReply
from rlsched.wire.states import QUEUED

NAME = "slurm"
NOTE_S = 60.0
"""Interval at which a `Watched` note is written, seconds."""
FORGETS_S = 300.0
"""Slurm's default of MinJobAge, seconds."""
_log = logging.getLogger("rlsched.engine")


class CarriesNothingOut:
    """Transport of a shadow's broker, which sends nothing."""

    def reply(self, route: bytes, request: int, message: ClientReply) -> None:
        """Do nothing, because there is no client."""

    def send_node(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Do nothing, because Slurm has already started the job."""

    def drop_node(self, node: str) -> None:
        """Do nothing, because no node is connected."""


def forgets_after_s(config: dict[str, str], poll_s: float) -> float:
    """Return the time for which Slurm keeps ended jobs, seconds.

    Raises:
        InputError: this time is shorter than two query intervals, so that the shadow would miss ends.
    """
    match = re.match(r"(\d+)", config.get("MinJobAge", ""))
    kept_s = float(match[1]) if match is not None else FORGETS_S
    if kept_s < 2 * poll_s:
        raise InputError(
            f"--poll-s {poll_s:g}: this Slurm forgets jobs {kept_s:g} s after their end (MinJobAge), so that "
            f"ends would be missed; expected at most {kept_s / 2:g}"
        )
    return kept_s


class ShadowBroker:
    """A broker without sockets that follows a Slurm cluster and never writes to it.

    Args:
        settings: Settings of the broker. Only directory, policy, fallback, prediction and history are used.
        reader: Queries Slurm.
        config: Slurm's configuration from `Reader.check`.
        poll_s: Seconds between two queries.
        preempts: Whether jobs that Slurm can requeue count as preemptible.

    Raises:
        InputError: the policy, the directory or this Slurm cluster cannot be used.
        JournalError: the journal cannot be used.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        reader: Reader,
        config: dict[str, str],
        poll_s: float,
        *,
        preempts: bool,
    ) -> None:
        self._reader, self._poll_s = reader, poll_s
        self._forgets_s = forgets_after_s(config, poll_s)
        soft_errors = SoftErrors(_log.warning)
        warm = warmed_up(settings)
        with ExitStack() as opened:
            self._notes = Notes(settings.directory)
            opened.callback(self._notes.close)
            self._journal = Journal(settings.directory / JOURNAL_FILE)
            opened.callback(self._journal.close)
            self.policy = warm.scheduler
            self._state = warm.catch_up(self._journal, _log.warning)
            self._fits = Fits(self._state.predictions, _log.warning)
            opened.callback(self._fits.close)
            self._snapshots = SnapshotKeeper(self._journal, _log.warning)
            self._records = RecordLog(settings.directory / STORE_FOLDER, settings.logdir, soft_errors)
            opened.callback(self._records.close)
            last = max((record.number for record in self._records.last), default=-1)
            self._follows = Follows(warm.scheduler, self._state, last + 1)
            cluster = config.get("ClusterName", "slurm")
            self._mirror = Mirror(NAME, cluster, reader.partitions, self._state, preempts=preempts)
            started = BrokerStarted(
                epoch=self._state.epoch + 1,
                cluster=self._state.identity or secrets.token_hex(8),
                policy=warm.scheduler.name,
                fallback=warm.fallback,
                version=rlsched.__version__,
                order=warm.scheduler.order.name,
            )
            self._machine = Machine(
                self._state,
                self._follows,
                started,
                max(time.time(), self._state.now_s + 0.001),
                ended=self._journal.ended,
                limits=Limits(launch_timeout_s=86_400.0),
                soft_errors=soft_errors,
            )
            self._shadow = Shadow(self._machine, self._follows, self._mirror, self._commit)
            self._opened = opened.pop_all()
        self._ran_before: Counter[str] = Counter()
        self._noted_s, self._looks, self._failed = time.time(), 0, 0
        self._decisions, self._guard = 0, Counter[str]()
        self._is_away = False
        self._stand_again(settings.directory)
        began = Began(
            at_s=self._noted_s,
            cluster=cluster,
            partitions=list(reader.partitions),
            policy=warm.scheduler.name,
            toml=Policy.of(settings.policy).toml,
            poll_s=poll_s,
        )
        self._notes.add([began])

    def _stand_again(self, directory: Path) -> None:
        """Restore, for each queued job, the time since which the policy has wanted to start the job.

        The times are in the last `Watched` note before the restart.
        """
        noted = [note for note in read_notes(directory) if isinstance(note, Watched)]
        since_s = noted[-1].standing if noted else {}
        for seq, job in self._state.job_of_seq.items():
            wanted_s = since_s.get(key_of(job.spec.token))
            if wanted_s is not None and job.state == QUEUED:
                self._follows.standing[seq] = Wish((), wanted_s, 0, "")

    # ---- the loop ---------------------------------------------------------------------------------

    def serve(self, stop: threading.Event) -> None:
        """Follow Slurm until `stop` is set. Events during an outage of slurmctld are processed later."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            began_s = time.monotonic()
            self.query_slurm()
            took_s = time.monotonic() - began_s
            pause_s = max(self._poll_s - took_s, took_s)
        self.note()
        self._snapshots.keep(self._state, self.policy)

    def query_slurm(self) -> None:
        """Query Slurm once, and process the events since the last query."""
        try:
            facts = self._reader.facts()
        except SlurmError as error:
            self._failed += 1
            if not self._is_away:
                _log.warning("Slurm does not answer: %s; next query in %g s or later", error, self._poll_s)
            self._is_away = True
        else:
            if self._is_away:
                _log.warning("Slurm answers again")
            self._is_away = False
            self._looks += 1
            self._shadow.follow_facts(facts, self._forgets_s)
        self._records.flush()
        self._fits.step(self._machine.now_s)
        if self._snapshots.is_snapshot_due(is_quiet=True):
            self._snapshots.keep(self._state, self.policy)
        if time.time() - self._noted_s >= NOTE_S:
            self.note()

    def _commit(self, effects: Sequence[Effect], at_s: float) -> None:
        """Write the notes on starts, then the journal, so that each start in the journal has a note."""
        asked = self._follows.take_decisions()
        self._decisions += asked.decisions
        self._guard.update(asked.guard)
        if asked.compared:
            self._notes.add(asked.compared)
        self._records.add(asked.records)
        for kept in perform(effects, at_s, self._journal, CarriesNothingOut()):
            self._records.add(
                [], [told for one in kept.happened if (told := self._with_slurm_number(one)) is not None]
            )

    def _with_slurm_number(self, event: JobEvent | NodeChange) -> JobEvent | NodeChange | None:
        """Return an event with Slurm's job ID instead of the broker's.

        None: the job was withdrawn from the broker or submitted again, but still waits in Slurm.
        """
        if isinstance(event, NodeChange):
            return event
        job = self._state.job(int(event.job))
        if job is None:
            return event
        key, token = key_of(job.spec.token), job.spec.token
        left_only = event.kind == "end" and not event.attempt and not self._mirror.is_known_over(key)
        if left_only or (event.kind == "submit" and not is_first_offer(token)):
            return None
        return msgspec.structs.replace(event, job=key)

    def note(self) -> None:
        """Write a `Watched` note on the activity since the previous `Watched` note."""
        now_s, drift = time.time(), self.policy.drift()
        ran = Counter(self._reader.ran)
        watched = Watched(
            since_s=self._noted_s,
            until_s=now_s,
            looks=self._looks,
            failed=self._failed,
            ran=dict(ran - self._ran_before),
            asked=self._decisions,
            guard=dict(self._guard),
            outside=drift.outside if drift is not None else [],
            drifts=drift is not None and drift.active,
            note="it has learned nothing" if drift is None else drift.note,
            left=self._mirror.left,
            standing={
                key_of(self._state.job_of_seq[seq].spec.token): wish.since_s
                for seq, wish in self._follows.standing.items()
                if seq in self._state.job_of_seq
            },
        )
        self._notes.add([watched])
        self._noted_s, self._looks, self._failed, self._decisions = now_s, 0, 0, 0
        self._ran_before, self._guard, self._mirror.left = ran, Counter(), {}

    def ready_line(self) -> str:
        """Return the line that is printed when the shadow is ready."""
        live = list(self._state.job_of_seq.values())
        running = sum(job.active is not None for job in live)
        return (
            f"rlsched shadow ready (policy {self.policy.name}, partitions "
            f"{', '.join(self._mirror.partitions)}, {running} jobs running, {len(live) - running} waiting, "
            f"a look every {self._poll_s:g} s, journal {self._journal.path}); nothing is written to Slurm"
        )

    def states(self) -> dict[str, str]:
        """Return the state and the last placement of every job in memory, as text by Slurm job ID."""
        return {
            key_of(job.spec.token): f"{job.state} {place_of(job)}".strip()
            for _, job in sorted(self._state.jobs.items())
        }

    def wanted_starts(self) -> dict[str, list[tuple[str, int]]]:
        """Return the starts that the policy wants now: by Slurm job ID, (node, GPU index) of each GPU."""
        cluster = self._state.cluster
        return {
            key_of(self._state.job_of_seq[seq].spec.token): places_of(cluster, wish.gpus)
            for seq, wish in self._follows.standing.items()
            if seq in self._state.job_of_seq
        }

    def close(self) -> None:
        """Close the journal, the store of decisions and the notes."""
        self._opened.close()
