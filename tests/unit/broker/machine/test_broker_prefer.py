"""GPU types that jobs prefer: allocated, not waited for, refused, changed, listed, journalled, replayed."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import JobSubmitted, JobUpdated
from rlsched.broker.compaction.compaction import DAY_S
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.as_history import history_of
from rlsched.cluster.demand import Demand
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Heartbeat,
    Hello,
    History,
    ListHistory,
    ListJobs,
    Ok,
    Refused,
    Submitted,
    Tasks,
    Update,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import ended, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.unit.broker.machine.test_broker_gpu_types import A100, H100, card, cluster, end, on, why

SAMPLES = Path(__file__).parents[4] / "tests/samples/journal"


def preferred(broker: HandBroker, job: int) -> list[str]:
    """Preferred types as in lists."""
    return broker.ask(ListJobs(job=job)).jobs[0].preferred_types  # type: ignore[union-attr]


def test_job_gets_preferred_gpus_if_they_are_free_and_else_others_at_once(journal: Journal) -> None:
    broker = cluster(journal)
    for gpus in (3, 1, 1):
        broker.ask(submit(gpus, preferred_types=["h100"]))
    broker.ask(submit(4, preferred_types=["H100"]))
    assert [on(broker, job) for job in (1, 2, 3, 4)] == [["n1"], ["n1"], ["n0"], []]
    assert preferred(broker, 1) == ["H100"], "a type of the table has the spelling of the table"
    assert "it has GPUs of the type that it prefers, H100" in why(broker, 2)
    assert "it prefers GPUs of type H100, on which it could not start then" in why(broker, 3)
    assert "it prefers GPUs of type H100, and does not wait for them" in why(broker, 4)
    end(broker, 3)
    assert on(broker, 4) == ["n0"], "it has waited for no type"
    plain = submit(1)
    broker.ask(plain)
    assert not [line for line in why(broker, 5) if "prefer" in line]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"gpu_types": ["A100"], "preferred_types": ["H100", "T4"]},
            "--prefer H100,T4: expected a GPU type that --gpu-type accepts (A100); "
            "change one of the two options",
        ),
        (
            {"preferred_types": ["h10"]},
            "no node that it may use has GPUs of type h10 that it prefers: did you mean H100? "
            f"its nodes have {A100}, {H100}",
        ),
        (
            {"gpu_types": ["H100"], "preferred_types": ["H100-40GB"]},
            "no node that it may use has GPUs of type H100-40GB that it prefers: did you mean H100? its",
        ),
        ({"preferred_types": [""]}, "preferred_types: expected names of GPU types"),
        ({"preferred_types": ["A100|H100"]}, "preferred_types: expected names of GPU types"),
        ({"preferred_types": ["x" * 65]}, "preferred_types must be at most 64 characters"),
        ({"preferred_types": ["a"] * 17}, "preferred_types: expected at most 16, got 17"),
        ({"preferred_types": ["H\x1b100"]}, "preferred_types must not contain control characters"),
    ],
)
def test_wrong_preference_is_refused_in_one_line(
    journal: Journal, asked: dict[str, object], said: str
) -> None:
    broker = cluster(journal)
    refused = broker.ask(submit(**{"num_gpus": 1} | asked))  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert said in refused.message
    assert "\n" not in refused.message


def test_the_word_any_stands_for_all_types(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, gpu_types=["any"], preferred_types=["Any"]))
    spec = broker.state.jobs[1].spec
    assert (spec.gpu_types, spec.preferred_types) == ([], [])
    refused = broker.ask(submit(1, gpu_types=["any", "H100"]))
    assert isinstance(refused, Submitted), "a type that no GPU has, next to one that some have"


def test_preference_can_be_less_or_more_specific_than_the_accepted_types(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, gpu_types=["H100", "A100"], preferred_types=["h100-80gb"]))
    broker.ask(submit(1, gpu_types=["a100-sxm4"], preferred_types=["A100"]))
    assert [on(broker, job) for job in (1, 2)] == [["n1"], ["n0"]]


def test_preference_of_a_waiting_job_can_change(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, gpu_types=["A100", "H100"], preferred_types=["A100"], hold=True))
    said = [
        broker.ask(Update(job=1, preferred_types=["V100"])),
        broker.ask(Update(job=1, gpu_types=["H100"])),
        broker.ask(Update(job=1, gpu_types=["H100"], preferred_types=["A100"])),
    ]
    assert all(isinstance(one, Refused) for one in said)
    conflict = "--prefer A100: expected a GPU type that --gpu-type accepts (H100); change one of the two"
    assert [conflict in one.message for one in said] == [False, True, True]  # type: ignore[union-attr]
    assert isinstance(broker.ask(Update(job=1, preferred_types=["h100"])), Ok)
    assert preferred(broker, 1) == ["H100"]
    demand = Demand(gpus=1, gpu_types=("A100", "H100"), preferred_types=("H100",))
    assert broker.state.cluster.demands[-1] == demand
    assert isinstance(broker.ask(Update(job=1, gpu_types=["H100"])), Ok)
    assert isinstance(broker.ask(Update(job=1, preferred_types=[])), Ok)
    assert broker.state.cluster.demands[-1] == Demand(gpus=1, gpu_types=("H100",))
    again = make(journal)
    assert again.state.jobs[1].spec.preferred_types == []
    assert again.state.cluster.demands == broker.state.cluster.demands


def test_change_decides_where_the_job_starts(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(8))
    broker.ask(submit(2, preferred_types=["H100"]))
    assert on(broker, 2) == []
    assert isinstance(broker.ask(Update(job=2, preferred_types=["A100"])), Ok)
    end(broker, 1)
    assert on(broker, 2) == ["n0"]
    assert isinstance(broker.ask(Update(job=2, preferred_types=["H100"])), Refused), "it has GPUs"
    assert make(journal).state.cluster.digest() == broker.state.cluster.digest()


def test_tasks_of_an_array_prefer_also_after_a_change(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(4, tasks=[Tasks(0, 3)], array_limit=1, preferred_types=["H100"]))
    (first,) = broker.state.jobs
    assert on(broker, first) == ["n1"]
    assert preferred(broker, 1) == ["H100"]
    assert isinstance(broker.ask(Update(job=1, preferred_types=["A100"])), Ok)
    end(broker, first)
    assert [on(broker, job) for job in broker.state.jobs if state(broker, job) == "launching"] == [["n0"]]


def test_history_has_the_preference_and_the_types_used(journal: Journal) -> None:
    broker = cluster(journal)
    for _ in range(2):
        broker.ask(submit(4, preferred_types=["H100"]))
    end(broker, 1)
    rows = broker.ask(ListHistory())
    assert isinstance(rows, History)
    assert {row.job: (row.preferred_types, row.gpu_types) for row in rows.jobs} == {
        1: ("H100", H100),
        2: ("H100", A100),
    }


def test_replay_decides_alike_and_the_journal_is_a_trace_with_preferences(journal: Journal) -> None:
    broker = cluster(journal)
    for gpus, types in ((3, ["H100"]), (2, ["H100"]), (4, []), (1, ["A100", "H100"]), (1, ["A100"]), (8, [])):
        broker.ask(submit(gpus, preferred_types=types))
    broker.ask(Update(job=3, preferred_types=["A100"]))
    for _ in range(6):
        for job in broker.state.jobs:
            end(broker, job)
    assert {job.state for job in broker.state.jobs.values()} == {"completed"}
    assert any(isinstance(row.entry, JobUpdated) for row in journal.rows())
    records = [record for kept in broker.records for record in kept.records]
    again = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(again) == len(records) > 4
    for theirs, ours in zip(records, again, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs
    history = history_of(Path(journal.path))
    assert history.trace.extra["prefer"].tolist() == ["H100", "H100", "A100", "A100|H100", "A100", ""]
    with closing(Journal(Path(journal.path).with_name("plain.sqlite"))) as other:
        cluster(other).ask(submit(1))
        assert "prefer" not in history_of(Path(other.path)).trace.extra


def test_compacted_journal_keeps_preferences_of_live_jobs(tmp_path: Path) -> None:
    path = tmp_path / "compacted.sqlite"
    broker = cluster(Journal(path))
    broker.ask(submit(4, preferred_types=["H100"]))
    broker.says("n1", launched(1))
    broker.ask(submit(4, preferred_types=["H100"]))
    broker.says("n0", launched(2))
    broker.ask(submit(1, preferred_types=["A100"]))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    digest, demands = broker.state.cluster.digest(), broker.state.cluster.demands
    broker.journal.close()
    with compacted(path, 1_000.0 + DAY_S) as journal:
        again = make(journal)
        assert again.state.cluster.digest() == digest
        assert again.state.cluster.demands == demands
        assert again.state.jobs[3].spec.preferred_types == ["A100"]
        for number, node in ((2, "n0"), (1, "n1")):
            again.says(node, back(again, node, number))
        again.says("n0", ended(2))
        assert on(again, 3) == ["n0"]


def back(broker: HandBroker, name: str, job: int) -> Hello:
    """A node that registers again, with its running job."""
    attempt = broker.state.jobs[job].attempt
    assert attempt is not None
    runs = AttemptReport(job=job, attempt=attempt.number, rank=0, state="running")
    return card(name, {"n0": A100, "n1": H100}[name], cluster="c1", attempts=[runs])


@pytest.mark.parametrize("version", ["1", "6"])
def test_jobs_of_older_journals_have_no_preference(tmp_path: Path, version: str) -> None:
    """These versions wrote submissions without the field."""
    shutil.copy(SAMPLES / f"version-{version}.sqlite", tmp_path / "journal.sqlite")
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        old = make(journal).state
        facts = [row.entry for row in journal.rows() if isinstance(row.entry, JobSubmitted)]
    assert facts
    assert all(one.preferred_types == [] for one in facts)
    assert not any(one.preferred_types or one.only_preferred for one in old.cluster.demands)
