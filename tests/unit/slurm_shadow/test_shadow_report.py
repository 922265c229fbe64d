"""The report of a shadow: totals of its notes, and days replayed from their midnights."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.broker.queries.as_history import JournalHistory, NodeStateChange, history_of
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.drift import ColumnOutOfRange
from rlsched.decide.policies.policy import Policy
from rlsched.engine.shadow.notes import Notes, StartComparison, Watched, read_notes
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.cli import shadow
from rlsched_agents.shadow.agreement import agreement, guarding
from rlsched_agents.shadow.replay import replay
from rlsched_agents.shadow.report import report
from rlsched_agents.whatif.job_history import JobHistory
from rlsched_agents.whatif.site import NO_CLAIMS
from rlsched_envs.sim.engine import Engine, PredictedTimes
from tests.support.broker.in_memory import BEGAN_S, Bench

DAY_S = 86_400.0


def start(
    job: str, at_s: float, since_s: float | None, until_s: float | None = None, **said: object
) -> StartComparison:
    wanted = {"wanted_nodes": ["n1"], "wanted_gpus": [0]} if since_s is not None else {}
    body = {"nodes": ["n1"], "gpus": [0], **wanted, **said}
    return StartComparison(
        at_s=at_s, job=job, partition="gpu", num_gpus=1, submit_s=0.0, wanted_since_s=since_s,
        wanted_until_s=until_s, **body,  # type: ignore[arg-type]
    )  # fmt: skip


def test_starts_are_classified_by_the_time_of_the_policy_s_wish() -> None:
    found = agreement(
        [
            start("same", 100.0, 95.0),
            start("short", 100.0, 99.0, gpus=[]),
            start("displaced", 100.0, 95.0, 99.0, before=1, wanted_gpus=[1]),
            start("earlier", 200.0, 140.0, wanted_nodes=["n2"]),
            start("long ago", 300.0, 100.0, 200.0),
            start("never", 300.0, None),
        ]
    )
    assert (found.starts, found.same_instant, found.earlier, found.not_then) == (6, 3, 1, 2)
    assert (found.same_nodes, found.gpus_known, found.same_gpus) == (3, 3, 1)
    assert (found.instants, found.next, found.earlier_median_s) == (3, 2, 60.0)


def test_guard_and_features_are_summed() -> None:
    def outside(share: float) -> list[ColumnOutOfRange]:
        return [ColumnOutOfRange(column="queue", share_frac=share, value=9.0, low=0.0, high=5.0)]

    found = guarding(
        [
            Watched(since_s=0.0, until_s=60.0, looks=6, asked=10, guard={"late": 1}, ran={"squeue": 6}),
            Watched(since_s=60.0, until_s=120.0, looks=5, failed=1, asked=5, guard={"late": 1, "drift": 2},
                    outside=outside(0.4), drifts=True),
            Watched(since_s=120.0, until_s=180.0, outside=outside(0.2), standing={"7": 100.0},
                    left={"features": 2}),
        ]
    )  # fmt: skip
    assert (found.watched_s, found.looks, found.failed, found.decisions) == (180.0, 11, 1, 15)
    assert found.guard == {"late": 2, "drift": 2}
    assert (found.drift_minutes, found.standing, found.left) == (1, 1, {"features": 2})
    (feature,) = found.outside
    assert (feature.feature, feature.minutes, feature.most_frac) == ("queue", 2, 0.4)


def test_notes_are_read_once_each_also_after_a_truncated_one(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.add([start("1", 10.0, None)])
    notes.close()
    with notes.path.open("ab") as file:
        file.write(b'{"type":"compared","at_')
    notes = Notes(tmp_path)
    notes.add([start("1", 10.0, 5.0), start("2", 11.0, None)])
    notes.close()
    assert [
        (note.job, note.wanted_since_s) for note in read_notes(tmp_path) if isinstance(note, StartComparison)
    ] == [
        ("1", None),
        ("2", None),
    ]


def history(rule: str, days: int = 3) -> JournalHistory:
    """A history that a rule made on two nodes of four GPUs, about 90 jobs a day; its midnight is local."""
    rng = np.random.default_rng(5)
    jobs = 90 * days
    trace = Trace.from_columns(
        name="made",
        submit_s=np.sort(rng.uniform(0.0, DAY_S * days - 7200.0, jobs)),
        duration_s=rng.exponential(3600.0, jobs) + 60.0,
        num_gpus=rng.choice([1.0, 2.0, 4.0], jobs),
        user=rng.choice(["ada", "bo"], jobs),
        vc=np.full(jobs, "gpu"),
    )
    cluster = ClusterSpec.uniform(2, 4)
    said = PredictedTimes(trace.duration_s, np.full(jobs, 0.1))
    policy = Policy(rule).rule
    table = Engine(trace, cluster, order=policy.order, predictions=said).run_rule(policy)
    trace.extra["queue_s"] = table.start_s - trace.submit_s
    trace.predicted_s[:] = said.predicted_s
    trace.predicted_spread[:] = said.spread
    local = time.localtime(BEGAN_S)
    midnight_s = time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))
    return JournalHistory(trace, cluster, [], midnight_s, float(table.end_s.max()))


def test_site_s_rule_is_found_and_the_same_rule_changes_nothing() -> None:
    told = replay(history("fifo-backfill"), Policy("fifo-backfill"))
    assert told.rule == "fifo-backfill"
    assert told.all.grade == "A"
    assert len(told.by_day) == 3
    assert told.all.ratio is not None
    assert told.all.ratio.ratio == pytest.approx(1.0)
    assert told.all.blocks == "hours"


def test_policy_with_short_jobs_first_would_have_changed_it() -> None:
    told = replay(history("fifo-backfill"), Policy("qssf-backfill"))
    ratio = told.all.ratio
    assert ratio is not None
    assert ratio.high is not None
    assert ratio.high < 1.0
    assert told.all.policy_s == pytest.approx(told.all.site_s * ratio.ratio)
    assert sum(day.jobs for day in told.by_day.values()) == told.all.jobs


def test_no_claim_for_starts_that_no_rule_explains() -> None:
    made = history("fifo-backfill")
    waits_s = made.trace.extra["queue_s"]
    waits_s[:] = np.random.default_rng(1).permutation(waits_s) * 3.0
    short = made.trace.duration_s
    short[:] = 1.0  # so that they are possible on these nodes
    told = replay(made, Policy("qssf-backfill"))
    assert told.all.grade == NO_CLAIMS
    assert told.all.ratio is None


def test_drained_node_is_drained_in_the_replay() -> None:
    made = history("fifo-backfill")
    drained = JournalHistory(
        made.trace, made.cluster, [NodeStateChange(0.0, 1, "drain")], made.origin_s, made.until_s
    )
    assert replay(drained, Policy("fifo")).all.site_s > replay(made, Policy("fifo")).all.site_s


def test_shadow_s_journal_is_a_history(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "shadow")
    bench.look()
    slurm = bench.slurm
    over, runs, waits = slurm.submit(2), slurm.submit(1), slurm.submit(4)
    slurm.change(waits, time_limit_s=600.0)
    slurm.start(over, "n1", [0, 1])
    others = slurm.submit(2, bound="features")
    slurm.start(others, "n2", [0, 1])
    bench.look(10.0)
    slurm.end(over)
    slurm.start(runs, "n1", [3])
    slurm.why["n2"] = "drain in Slurm"
    bench.look(20.0)
    bench.look(20.0)
    bench.close()
    told = history_of(bench.directory)
    trace = told.trace
    rows = {job: row for row, job in enumerate(trace.job_id.tolist())}
    assert set(rows) >= {over, runs, waits}
    assert trace.status[[rows[over], rows[runs], rows[waits]]].tolist() == ["completed", "running", "queued"]
    assert trace.duration_s[rows[over]] == 10.0
    assert np.isnan(trace.extra["queue_s"][rows[waits]])
    assert trace.time_limit_s[rows[waits]] == 600.0
    assert trace.num_gpus[trace.user == "(others)"].tolist() == [2.0]
    assert [(change.node, change.event) for change in told.changes] == [(1, "drain")]
    assert JobHistory.read(bench.directory, None).format == "journal"


def test_report_states_its_limits(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "shadow")
    bench.look()
    with pytest.raises(InputError, match="has no data yet"):
        report(bench.directory)
    key = bench.slurm.submit(1)
    bench.slurm.start(key, "n1", [0])
    bench.look(10.0)
    bench.close()
    found = report(bench.directory)
    assert found.agreement.same_gpus == 1
    assert "starts are recorded for 1 of its 1 jobs" in found.refused
    said = CliRunner().invoke(shadow, [str(bench.directory), "--html", str(tmp_path / "page.html")])
    assert said.exit_code == 0, said.output
    assert "no results about waiting times" in said.output
    assert "same instant" in (tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="--day 2001-01-01"):
        report(bench.directory, "2001-01-01")
