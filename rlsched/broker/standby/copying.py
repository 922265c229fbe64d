"""A standby on another machine, which copies the primary's journal over the network and can take over.

Without an admin's order, the standby takes over only if the primary answers neither the standby nor most of
the nodes that are up (`rlsched.broker.standby.orphan_hellos`). The copy may lack the primary's last commits.
A take-over therefore treats the copy like a restored backup (`rlsched.broker.journal.backup.take_over`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rlsched.broker.base.rows import JournalRow
from rlsched.broker.compaction.compacting import Compacting
from rlsched.broker.compaction.keeping import Keeps
from rlsched.broker.journal.backup import set_aside, take_over
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import JournalMark
from rlsched.broker.standby.orphan_hellos import Knocks
from rlsched.broker.standby.shipping import access_digest
from rlsched.broker.standby.standby import Taken
from rlsched.broker.standby.warm import PAGE, Warm
from rlsched.broker.state.broker_state import BrokerState
from rlsched.errors import BrokerUnavailableError, InputError, JournalFullError
from rlsched.files.lock import locked
from rlsched.files.private import touch_private
from rlsched.transport.access import AccessEntry
from rlsched.transport.connection import Connection
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import JournalRows, ReadJournal, Refused, Serving

COPY_FILE = "copy"
"""File that marks the journal in the same directory as a copy; removed by a take-over."""
ASK_S = 1.0
ASK_AGAIN_S = 0.6
"""Time after which a request without an answer is repeated, seconds. A running broker answers sooner."""
OWN_S = 5.0
"""Time without an answer from the primary after which a standby takes over, seconds, if its journal is not a
copy but was served by a broker in this directory.
"""
PAUSE_S = 1.0


@dataclass(frozen=True)
class Copies:
    """Source of a copied journal, and the condition of a take-over.

    Attributes:
        of: Address of the primary.
        take_over_after_s: Time without an answer from the primary after which a standby with a complete copy
            takes over, seconds. Second condition: most of the nodes that are up have lost the primary too, or
            no node is up. None: the standby takes over only on an admin's order.
    """

    of: str
    take_over_after_s: float | None = None


@dataclass(frozen=True)
class CopyBounds:
    """Retention of a copied journal.

    Attributes:
        keeps: How long entries and rows of ended jobs are kept.
        half_life_s: Half-life of a user's usage for fair share, seconds; infinite: fair share is off.
    """

    keeps: Keeps
    half_life_s: float


@dataclass
class Orders:
    """An admin's orders to this process, received as signals: `stop` it, or `promote` it to primary."""

    stop: bool = False
    promote: bool = False


def copy_and_wait(
    path: Path,
    address: str,
    home: KeyHome,
    warm: Warm,
    copies: Copies,
    say: Callable[[str], None],
    orders: Orders,
    bounds: CopyBounds,
) -> Taken | None:
    """Copy a broker's journal until this process takes over. Return None if the process is stopped first.

    Args:
        path: Path of the copy. A different journal at this path is renamed.
        address: Address at which this process listens, and serves after a take-over.
        home: Key directory, with the primary's keys.
        warm: The policy, and the state after the last entry of the copy.
        copies: Address of the primary, and condition of a take-over.
        say: Function that logs a line.
        orders: An admin's orders to stop or to take over, received as signals.
        bounds: How long entries and ended jobs stay in the copy.

    Raises:
        InputError: the keys are missing, the address is in use, or the primary belongs to another cluster.
        JournalHeldError: a broker has the copy open.
        JournalError: the copy is damaged, or cannot be written.
    """
    if not (home.directory / "broker.key").exists():
        raise InputError(
            f"{home.directory}: no broker.key here; copy broker.key, broker.public, client-default.key and "
            f"authorised/ from the key directory of the broker at {copies.of}, so that nodes and clients "
            "accept this standby"
        )
    with ExitStack() as opened:
        copy = _Copy(path, home, warm, say, bounds)
        opened.callback(copy.close)
        connection = Connection(copies.of, home.client(), home.broker_public(), str(home.directory))
        opened.callback(connection.close)
        hellos = Knocks(address, home, copies.of)
        opened.callback(hellos.close)
        taken = _wait(copy, connection, hellos, copies, orders)
        if taken is not None:
            copy.is_given_away = True
        return taken


def _wait(
    copy: _Copy,
    connection: Connection,
    hellos: Knocks,
    copies: Copies,
    orders: Orders,
) -> Taken | None:
    heard_s, silent_s = time.monotonic(), 0.0
    while not orders.stop:
        hellos.listen(copy.state.identity)
        if orders.promote:
            orders.promote = False
            if copy.journal.last:
                return copy.become_journal(copies.of)
            copy.log_change("nothing is copied yet: a take-over is impossible")
        try:
            answer = connection.ask(copy.question(), JournalRows, ASK_AGAIN_S if silent_s else ASK_S)
        except BrokerUnavailableError as error:
            silent_s = time.monotonic() - heard_s
            if connection.is_refused:  # a refusal shows that the primary is alive
                heard_s = time.monotonic()
                copy.log_change(str(error))
            elif copy.is_own:
                if silent_s >= OWN_S:
                    return copy.own()
            elif copies.take_over_after_s is None or silent_s < copies.take_over_after_s or not copy.is_whole:
                copy.tell_silence(copies)
            else:
                without, up = hellos.count_orphans(copy.state)
                if 2 * without > up or not up:
                    return copy.become_journal(copies.of)
                copy.log_change("the primary does not answer here, but most nodes reach it: no take-over")
            continue
        except InputError as error:
            answer = Refused(message=str(error))
        heard_s, silent_s = time.monotonic(), 0.0
        if isinstance(answer, JournalRows):
            if copy.is_own and answer.epoch < copy.state.epoch:
                return copy.own()
            copy.take(answer)
            copy.compact()
        elif isinstance(answer, Serving):  # the other broker is a standby too
            if copy.is_own:
                return copy.own()
            copy.log_change("the broker to be copied is a standby too: nothing is copied")
            time.sleep(PAUSE_S)
        elif not copy.asks_less():
            copy.log_change(f"the primary refuses to be copied: {getattr(answer, 'message', answer)}")
            time.sleep(PAUSE_S)
    return None


class _Copy:
    """The journal of this standby: a copy, or a journal that a broker in this directory served earlier.

    Attributes:
        journal: The journal.
        is_own: Whether a broker in this directory served the journal earlier; False: it is a copy.
        is_whole: Whether the copy has been complete at least once.
        is_given_away: Whether the caller of `copy_and_wait` must close the journal.
    """

    def __init__(
        self, path: Path, home: KeyHome, warm: Warm, say: Callable[[str], None], bounds: CopyBounds
    ) -> None:
        self._path, self._home, self._warm, self._say = path, home, warm, say
        warm.keeps_ended = True
        self._bounds = bounds
        self._mark = path.with_name(COPY_FILE)
        self._said = ""
        self._access = 0
        self._asks_ended = True
        self.is_whole = self.is_given_away = False
        self.journal = Journal(path)
        self._compacting = self._new_compacting()
        self.is_own = self.journal.last > 0 and not self._mark.exists()
        if not self.journal.last:
            JournalMark(path).remove()  # obsolete: the primary sends all commits again
        while warm.last < self.journal.last:
            rows = list(islice(self.journal.rows(warm.last), PAGE))
            self._apply(rows, self.journal.checksum_of(rows[-1].n))

    @property
    def state(self) -> BrokerState:
        """The broker's state after the last entry of the copy."""
        return self._warm.state

    def question(self) -> ReadJournal:
        """Return the request to the primary for the next entries."""
        last = self.journal.last
        return ReadJournal(
            after=last,
            checksum=self._warm.checksum or 0,
            access=self._access,
            ended_after=self.journal.ended_copied if self._asks_ended else -1,
        )

    def asks_less(self) -> bool:
        """Stop requesting rows of ended jobs, because older brokers refuse such requests.

        Return whether such rows were requested before.
        """
        asked_before, self._asks_ended = self._asks_ended and self.journal.ended_copied >= 0, False
        return asked_before

    def take(self, answer: JournalRows) -> None:
        """Add the rows of an answer from the primary to this standby's journal.

        Raises:
            InputError: this standby's journal belongs to another cluster than the primary.
        """
        identity = self._warm.state.identity
        if self.is_own and identity and answer.cluster != identity:
            raise InputError(
                f"{self._path}: this journal belongs to another cluster than the broker to be copied; "
                "use another --dir"
            )
        if self.is_own or not self._mark.exists():
            self.is_own = False
            touch_private(self._mark)
        if answer.is_other:
            self._begin_anew()
            return
        try:
            rows = self.journal.append(answer.rows)
        except JournalFullError as error:
            self.log_change(f"the journal cannot be copied now: {error}")
            time.sleep(PAUSE_S)
            return
        if rows:
            self._apply(rows, answer.rows[-1][4])
        if answer.access is not None:
            self._take_access(answer.access)
        if answer.ended is not None:
            self.journal.add_copied(answer.ended, is_all=answer.is_ended_all)
        if self.journal.last >= answer.last and (self.journal.ended_copied < 0 or not self._asks_ended):
            self.is_whole = True
            self.log_change(
                "copied; the copy is complete and follows the journal", f"{answer.last:,} entries "
            )

    def _apply(self, rows: list[JournalRow], checksum: int | None) -> None:
        """Apply entries to the state. Add the jobs that have ended to the table of ended jobs."""
        self._warm.apply(rows, checksum)
        ended = self._warm.take_finished()
        if self._warm.last > self.journal.ended_at:
            self.journal.add_ended(ended, self._warm.last)

    def _new_compacting(self) -> Compacting:
        return Compacting(self.journal, self._bounds.keeps, self._bounds.half_life_s, self._say)

    def compact(self) -> None:
        """Do a small part of the copy's compaction, if it is due."""
        self._compacting.step(max(time.time(), self.state.now_s), is_quiet=True)

    def _begin_anew(self) -> None:
        """Rename the journal and begin a new copy, because the journal differs from the primary's."""
        self._compacting.close()
        self.journal.close()
        lock = locked(self._path)
        kept = set_aside(self._path)
        JournalMark(self._path).remove()
        touch_private(self._path)
        self.journal = Journal(self._path, lock)
        self._compacting = self._new_compacting()
        self._warm.forget()
        self.is_whole = False
        self.log_change(
            f"the journal here differs from the primary's and was renamed to {kept}; copying from the first "
            "entry"
        )

    def _take_access(self, files: dict[str, str]) -> None:
        """Apply the primary's access list to this machine, so that it authorises the same keys.

        `files`: text of each file of the access list, by file name.
        """
        members = [
            one for one in (AccessEntry.parse(file, text) for file, text in files.items()) if one is not None
        ]
        with self._home.locked():
            here = self._home.access.members()
            there = {member.key.encode(): member for member in members}
            for key, member in there.items():
                if here.get(key) != member:
                    self._home.put(member)
            for key, member in here.items():
                if key not in there:
                    self._home.take(member)
        self._access = access_digest(files)

    def become_journal(self, of: str) -> Taken:
        """Take over: make the copy the cluster's journal. `of`: address of the primary."""
        since_s = time.monotonic()
        take_over(self.journal, self._warm.state)
        self._mark.unlink(missing_ok=True)
        return Taken(self._warm, lambda _: self.journal, f"the broker at {of}", since_s)

    def own(self) -> Taken:
        """Take over with this directory's own journal, which a broker served here earlier."""
        return Taken(self._warm, lambda _: self.journal, "")

    def log_change(self, what: str, more: str = "") -> None:
        """Log the message `more` + `what`. Do nothing if `what` is the same as in the last call."""
        if what != self._said:
            self._said = what
            self._say(
                f"rlsched broker stands by, process {os.getpid()}, with a copy in {self._path}: {more}{what}"
            )

    def tell_silence(self, copies: Copies) -> None:
        """Log that the primary does not answer, and the condition for a take-over."""
        if copies.take_over_after_s is None:
            when = f"`kill -USR1 {os.getpid()}` makes this standby take over"
        elif self.is_whole:
            when = f"this standby takes over after {copies.take_over_after_s:g} s"
        else:
            when = f"the copy is incomplete: only `kill -USR1 {os.getpid()}` makes this standby take over"
        self.log_change(f"no answer from {copies.of}; {when}")

    def close(self) -> None:
        """Close the journal, unless `is_given_away`."""
        self._compacting.close()
        if not self.is_given_away:
            self.journal.close()
