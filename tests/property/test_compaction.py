"""A base and the entries after it make the same broker as all entries, wherever the cut is."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlsched.broker.base.entries import BasePart, GpusHeld
from rlsched.broker.compaction import compaction
from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.state.broker_state import BrokerState
from rlsched.cluster.arrays import RUNNING
from rlsched.decide.scheduler import Scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    DependsOn,
    Heartbeat,
    Held,
    Hold,
    Holding,
    Release,
    Requeue,
    SetMember,
    SetQuota,
    Tasks,
    Update,
)
from rlsched.workload.predict.kinds import HEDGE
from tests.support.broker.broker_life import (
    CASES,
    RANKS,
    STEPS,
    Life,
    born,
    go_on,
    put_together,
    scheduler_of,
    shape,
)
from tests.support.broker.hand import submit
from tests.support.soak_size import times


def facts(state: BrokerState) -> list[object]:
    """`shape` without what a base does not keep: ledger numbers of finished jobs, past jobs."""
    job = state.cluster.arrays.job
    job.look_s[job.status != RUNNING] = 0.0  # unused leftovers of the slot's last job
    found = shape(state)
    predictor = state.predictions.predictor
    losses = [] if predictor is None else predictor.hedge.losses.round(9).tolist()
    ended = 0 if predictor is None else predictor.num_ended
    live = sorted((job, [one.tobytes() for one in said]) for job, said in state.predictions._open.items())
    return [
        *found[:6],
        [state.number_of_seq[seq] for seq in sorted(state.job_of_seq)],
        found[7],
        (state.predictions.mean.sums, losses, ended, live),
        (state.quotas.rows(state.now_s), state.accounts.members(), state.eligibility.counts()),
        ([(party.used, party.since_ms) for _, party in sorted(_parties(state))], state.quotas.due_s),
        (
            sorted(state.ran_on.items()),
            state.health_failures,
            [state.tokens[job.spec.token] for job in state.job_of_seq.values()],
            state.holdings.by_node,
        ),
        (state.cluster.waiting(0), state.gates._held, state.gates.due_s),
        sorted(
            (array.number, array.coming, array.aside, array.live, array.fresh, array.state)
            for array in state.arrays.known.values()
        ),
        [(job.number, job.spec) for job in sorted(state.job_of_seq.values(), key=lambda job: job.number)],
        [(one.number, one.spec, one.changes, one.dropped) for one in state.arrays.live.values()],
        {
            job: set(state.gates.open_dependencies(job))
            for job in (*state.jobs, *state.arrays.live)
            if state.gates.open_dependencies(job)
        },
    ]


def _parties(state: BrokerState) -> Iterator[Any]:
    for key, party in state.quotas._parties.items():
        if party.since_ms:
            yield key, party


class _Life(Life):
    """A life with quotas, accounts, holds, start times, dependencies, foreign GPUs, disconnected engines."""

    def step(self) -> None:
        if self.chance.random() < 0.1:
            self._engine(self.chance.choice(sorted(self.broker.state.nodes)))
        if self.chance.random() < 0.03:
            kind, name = self.chance.choice((("user", "ada"), ("user", "default"), ("vc", "v")))
            limit = self.chance.choice((None, 4, 8))
            order: Any = SetQuota(
                kind=kind, name=name, gpus=limit, gpu_hours=self.chance.choice((None, None, 0.3))
            )
            if self.chance.random() < 0.2:
                order = SetMember(account=self.chance.choice(("a", "b")), person="ada")
            self.broker.batch([ClientAsked(b"c", 0, order, Peer("admin", "c"))], after_s=0.5)
        elif self.chance.random() < 0.1:
            self.gate()
        super().step()

    def gate(self) -> None:
        """A job is submitted that waits for something, or a user holds, releases or changes one."""
        live = [job.number for job in self.broker.state.job_of_seq.values()]
        live += list(self.broker.state.arrays.live)
        others = self.chance.sample(live, min(len(live), self.chance.randint(0, 2)))
        kind: Any = self.chance.choice(("after", "afterany", "afterok", "afternotok"))
        on = [DependsOn(kind, job) for job in others]
        order: Any = submit(
            self.chance.randint(1, 3),
            token=f"gated-{self.broker.state.last_number}",
            hold=self.chance.random() < 0.3,
            begin_s=self.chance.choice((None, None, self.broker.now_s + 40.0)),
            depends_on=on,
            tasks=[Tasks(0, 20, 3)] if self.chance.random() < 0.3 else [],
        )
        if live and self.chance.random() < 0.4:
            order = self.order(self.chance.choice(live), on)
        self.broker.batch([ClientAsked(b"c", 0, order, Peer("admin", "c", "ada"))], after_s=0.5)

    def order(self, job: int, on: list[DependsOn]) -> Any:
        """An order for a live job, or for some tasks of an array."""
        chance = self.chance
        first = 3 * chance.randint(0, 6)
        some = [Tasks(first, min(18, first + 3 * chance.randint(0, 3)), 3)]
        tasks = some if job in self.broker.state.arrays.live and chance.random() < 0.7 else []
        if chance.random() < 0.5:
            return chance.choice((Hold, Release, Requeue, Cancel))(job=job, tasks=tasks)
        changes: dict[str, Any] = {
            "name": f"n{chance.randint(0, 9)}",
            "priority": chance.choice(("low", "normal", "high")),
            "time_limit_s": chance.choice((60.0, 600.0, math.inf)),
            "begin_s": self.broker.now_s + chance.choice((-5.0, 30.0)),
            "depends_on": on,
            "array_limit": chance.randint(0, 3),
        }
        return Update(job=job, tasks=tasks, **dict(chance.sample(sorted(changes.items()), 2)))

    def _engine(self, node: str) -> None:
        """A message of an engine about one of its nodes."""
        chance = self.chance
        if chance.random() < 0.2:
            away = chance.random() < 0.3
            self.broker.says(
                node, Heartbeat(name=node, unhealthy="it does not answer" if away else "", engine_away=away)
            )
            return
        gpus = chance.sample(range(4), chance.randint(0, 3))
        until_s = chance.choice((None, self.broker.now_s + 90.0))
        held = [Holding(by=f"job {gpu % 2}", gpus=[gpu], until_s=until_s) for gpu in gpus]
        self.broker.says(node, Held(held=held))


def compacted(path: Path, after_s: float, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compact the entries before a time. Returns the number of remaining entries."""
    monkeypatch.setattr(compaction, "load_scheduler", lambda _: scheduler)
    cut = compaction.made(path, after_s, RANKS.half_life_s)
    assert cut is not None
    journal = Journal(path)
    assert compaction.put(journal, cut)
    while journal.drop(37):
        pass
    journal.close()
    return len(read_journal(path))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
@pytest.mark.parametrize("seed", range(times(1)))
def test_base_and_later_entries_equal_all_entries(
    tmp_path: Path, case: tuple[str, str, float], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, chance = tmp_path / "journal.sqlite", Random(seed)
    journal = Journal(path)
    life = born(journal, case, seed, _Life)
    times = []
    for _ in range(STEPS):
        life.step()
        times.append(life.broker.now_s)
    assert life.broker.state.num_finished > 10
    journalled = read_journal(path)
    assert sum(isinstance(row.entry, GpusHeld) for row in journalled) > 1
    journal._db.execute("DELETE FROM snapshots")
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()

    policy, prediction, _ = case
    before = len(read_journal(path))
    shutil.copy(path, tmp_path / "whole.sqlite")
    shutil.copy(path, tmp_path / "cut.sqlite")
    for after_s in sorted(chance.sample(times[40:], 2)):  # the second begins with the base of the first
        left = compacted(tmp_path / "cut.sqlite", after_s, scheduler_of(policy), monkeypatch)
        assert left < before
    assert isinstance(read_journal(tmp_path / "cut.sqlite")[0].entry, BasePart)
    report = check(tmp_path / "cut.sqlite")
    assert (report.damage, report.derived) == ([], [])
    whole, cut = Journal(tmp_path / "whole.sqlite"), Journal(tmp_path / "cut.sqlite")
    assert facts(put_together(cut, case)) == facts(put_together(whole, case))
    _, entries = go_on(life, (whole, cut), case, seed)
    if prediction != HEDGE:  # its predictions of new jobs depend on the past jobs in its memory
        assert len(entries[0]) > 20
        assert entries[0] == entries[1], "the brokers differ after the next events"
