"""Sends the journal's stored rows to standbys on other machines, page by page, while the broker serves.

A standby requests the entries after the last entry of its copy. If there are none within `HOLD_S`, the broker
sends an empty answer, which shows that it is alive. Each standby gets at most one page of limited size per
turn of the broker's loop, so that a long journal does not delay clients and nodes.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from rlsched.broker.journal.journal import Journal
from rlsched.errors import JournalError
from rlsched.transport.access import AccessList
from rlsched.wire.messages import ClientReply, JournalRows, ReadJournal, Refused

PAGE_BYTES = 1 << 18
HOLD_S = 0.2
"""Maximum time for which a request waits for new entries, seconds."""
SILENT_S = 10.0
"""Time without requests from standbys after which the broker logs that the journal is not copied, seconds."""
MOST_STANDBYS = 4
MOST_ACCESS_BYTES = 1 << 19
"""Maximum size of an access list that is sent to standbys, bytes."""
LOOK_S = 1.0


class _PendingRead(NamedTuple):
    request: int
    message: ReadJournal
    at_s: float


class Shipping:
    """Answers standbys' requests for new journal entries and the access list.

    Args:
        access: The access list.
        reply: Function that sends an answer.
        say: Function that logs a line, called at a standby's first request, and when no request has arrived
            for `SILENT_S`.
    """

    def __init__(
        self,
        journal: Journal,
        access: AccessList,
        reply: Callable[[bytes, int, ClientReply], None],
        say: Callable[[str], None],
    ) -> None:
        self._journal, self._access, self._reply, self._say = journal, access, reply, say
        self._waiting: dict[bytes, _PendingRead] = {}
        self._cluster, self._epoch = "", 0
        self._heard_s: float | None = None
        self._looked_s = -LOOK_S
        self._files: dict[str, str] = {}
        self._digest = 0

    def began(self, cluster: str, epoch: int) -> None:
        """Store the cluster's ID and the epoch of the broker that serves now."""
        self._cluster, self._epoch = cluster, epoch

    def ask(self, route: bytes, request: int, message: ReadJournal) -> None:
        """Accept a standby's request, or refuse it if there are too many standbys."""
        if len(self._waiting) >= MOST_STANDBYS and route not in self._waiting:
            self._reply(
                route,
                request,
                Refused(message=f"{MOST_STANDBYS} standbys already copy this journal; stop one first"),
            )
            return
        if self._heard_s is None:
            self._say(
                f"a standby copies the journal; it has {message.after:,} of {self._journal.last:,} entries"
            )
        self._heard_s = time.monotonic()
        self._waiting[route] = _PendingRead(request, message, self._heard_s)

    def step(self) -> None:
        """Answer each request for which there is new data, or that has waited for `HOLD_S`.

        New data are new entries, a changed access list, or requested rows of ended jobs.
        """
        if not self._waiting:
            if self._heard_s is not None and time.monotonic() - self._heard_s > SILENT_S:
                self._heard_s = None
                self._say(f"no request from a standby for {SILENT_S:.0f} s: the journal is not copied now")
            return
        self._look()
        for route, asked in list(self._waiting.items()):
            if (
                self._journal.last > asked.message.after
                or asked.message.access != self._digest
                or asked.message.ended_after >= 0
                or time.monotonic() - asked.at_s >= HOLD_S
            ):
                del self._waiting[route]
                try:
                    answer: JournalRows | Refused = self._rows(asked.message)
                except JournalError as error:  # not logged: commits report errors of the disk
                    answer = Refused(message=str(error))
                self._reply(route, asked.request, answer)

    def _rows(self, asked: ReadJournal) -> JournalRows:
        known = self._journal.checksum_of(asked.after) if asked.after else 0
        is_other = known != asked.checksum
        rows = [] if is_other else self._journal.page(asked.after, PAGE_BYTES)
        ended: list[tuple[Any, ...]] | None = None
        is_all = False
        if asked.ended_after >= 0 and not is_other and not rows:  # entries first: they include ends
            ended, is_all = self._journal.ended.page(asked.ended_after, PAGE_BYTES)
        is_full = sum(len(row[3]) for row in rows) > PAGE_BYTES  # a single large entry, of `policy set`
        return JournalRows(
            cluster=self._cluster,
            epoch=self._epoch,
            last=self._journal.last,
            rows=rows,
            is_other=is_other,
            access=None if asked.access == self._digest or is_full else self._files,
            ended=ended,
            is_ended_all=is_all,
        )

    def _look(self) -> None:
        """Read the access list, if the last read was at least `LOOK_S` ago."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        files = {member.file: member.text() for member in self._access.members().values()}
        if sum(map(len, files.values())) <= MOST_ACCESS_BYTES:
            self._files, self._digest = files, access_digest(files)


def access_digest(files: dict[str, str]) -> int:
    """Return the digest that identifies an access list."""
    return zlib.crc32(msgspec.json.encode(sorted(files.items())))
