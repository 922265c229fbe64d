"""`rollout` tuned on stretches: the jobs, the scheduler before them, and the written entry."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.heuristics.rollout import Rollout
from rlsched_envs.sim.job_table import JobTable
from studies.policy import journal, tune_rollout
from studies.policy.cases import Case, read_trace, workload_of
from studies.policy.opponents import GRIDS, SHORT_TRACES, Tuned, TunedFile, entries, read_tuned, write_tuned
from studies.policy.predictions import stamps_of
from studies.policy.tune import Tried
from studies.policy.tune_rollout import Stretch, median_stretch, tried_of

DAY_S = 86400.0
CASES = [Case(trace="t", part=part, load=0.95) for part in ("train1", "train2")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    trace = Trace.from_columns(
        name="t",
        submit_s=np.sort(np.rint(rng.uniform(0, 20 * DAY_S, 600))),
        duration_s=np.rint(rng.lognormal(9, 1.5, 600)),
        num_gpus=rng.choice([1.0, 2.0, 8.0], 600),
    )
    trace.write(tmp_path / "t.csv.gz")
    (tmp_path / "t.cluster.toml").write_text('name = "t"\n\n[[nodes]]\ncount = 2\ngpus = 8\n')
    read_trace.cache_clear()
    return tmp_path


@pytest.fixture
def tuned_file(tmp_path: Path) -> Path:
    other = Tuned(grid={"pack 1": {"share": {}}}, chosen="pack 1", score=1.0, chosen_by_trace={})
    write_tuned(tmp_path / "tuned.json", TunedFile(traces=["t"], rules={"pack": other}))
    return tmp_path / "tuned.json"


def test_the_stretch_is_that_of_median_queueing_among_those_that_wait() -> None:
    queue_s = np.repeat([0.0, 900.0, 200.0, 99.0, 500.0], 10)
    assert median_stretch(queue_s, 10) == 40
    assert median_stretch(queue_s[:30], 10) == 10, "of two the one that waits longer"
    with pytest.raises(InputError, match="no 10 successive jobs wait for 100 s"):
        median_stretch(np.zeros(30), 10)


def test_the_reference_decides_before_the_stretch_and_the_policy_has_seen_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = workload_of(folder, CASES[1])
    work, predictions = tune_rollout.cut(whole, stamps_of(CASES[1], whole), 20)
    measured = work.window.measured(work.trace)
    assert measured.sum() == 20
    assert len(work.trace) == np.flatnonzero(measured)[-1] + 1 + 10, "half as many come behind"
    assert set(work.trace.job_id) <= set(whole.trace.job_id)
    tables: list[JobTable] = []
    asked_s: list[float] = []
    decide, run = Rollout.decide, tune_rollout.Engine.run

    def noted(self, state, partition, now_s, *, record=False):  # type: ignore[no-untyped-def]
        if not asked_s:
            assert self._search._seen.arrivals_of(partition).count > 20
        asked_s.append(now_s)
        return decide(self, state, partition, now_s, record=record)

    monkeypatch.setattr(Rollout, "decide", noted)
    monkeypatch.setattr(
        tune_rollout.Engine, "run", lambda *words, **more: tables.append(run(*words, **more)) or tables[-1]
    )
    found = tune_rollout.run_stretch(work, predictions, [Policy("rollout", name="rollout 2", samples=2)])
    assert found.jobs == 20
    assert min(asked_s) >= work.window.since_s
    assert set(found.queue_mean_s) == set(found.wall_s) == {"qssf-backfill", "rollout 2"}
    assert found.queue_mean_s["qssf-backfill"] >= 100.0
    reference = tune_rollout._engine(work, predictions).run_rule(Policy("qssf-backfill").rule)
    before = reference.start_s < work.window.since_s
    assert 20 < before.sum() < len(before)
    np.testing.assert_array_equal(tables[0].start_s[before], reference.start_s[before])


def test_the_value_with_the_least_mean_is_chosen_by_trace_too() -> None:
    def one(*queue_s: float) -> Stretch:
        named = dict(zip(("qssf-backfill", *GRIDS["rollout"].names), queue_s, strict=True))
        return Stretch(jobs=200, queue_mean_s=named, wall_s=named)

    other = Case(trace="u", part="train1", load=0.95)
    three = (one(100, 80, 90, 100), one(200, 100, 160, 300), one(50, 60, 45, 60))
    found = tried_of(dict(zip((*CASES, other), three, strict=True)), 9)
    assert found.ratios["rollout 4"] == {
        "t-train1-0.95-9": 0.8,
        "t-train2-0.95-9": 0.5,
        "u-train1-0.95-9": 1.2,
    }
    assert found.scores["rollout 4"] == pytest.approx((0.8 * 0.5 * 1.2) ** (1 / 3), abs=1e-4)
    nobody = tried_of({CASES[0]: one(0, 0, 0, 0), CASES[1]: one(200, 100, 160, 300)}, 9)
    assert nobody.ratios["rollout 4"] == {"t-train1-0.95-9": None, "t-train2-0.95-9": 0.5}
    assert nobody.scores["rollout 4"] == 0.5
    assert (found.choice.chosen, found.choice.chosen_by_trace) == (
        "rollout 4",
        {"t": "rollout 4", "u": "rollout 8"},
    )


def test_its_entry_is_written_once_all_are_there_and_no_other_is_touched(
    folder: Path, tuned_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = tuple(Policy("rollout", name=f"rollout {count}", samples=count) for count in (1, 2))
    grid = msgspec.structs.replace(GRIDS["rollout"], values=values)
    monkeypatch.setitem(GRIDS, "rollout", grid)
    monkeypatch.setattr(tune_rollout, "TUNING_LOADS", (0.95,))
    before = read_tuned(tuned_file)
    log = folder / "log.jsonl"
    words = [
        "--traces",
        str(folder),
        "--out",
        str(folder / "out"),
        "--trace",
        "t",
        "--jobs",
        "10",
        "--least-jobs",
        "10",
    ]
    words += ["--tuned", str(tuned_file), "--log", str(log)]
    assert tune_rollout.main([*words, "--budget-s", "0"]) == 0
    assert read_tuned(tuned_file) == before
    assert tune_rollout.main(words) == 0
    after = read_tuned(tuned_file)
    assert after.rules["rollout"].grid == grid.settings
    tried = msgspec.json.decode((folder / "out" / "tried.json").read_bytes(), type=Tried)
    assert len(tried.ratios["rollout 1"]) == 3
    assert msgspec.structs.replace(after, rules=before.rules) == before
    rows = entries(after, SHORT_TRACES[0], [Policy("ppo")])
    assert [row.policy for row in rows if row.label == "rollout"] == [after.rules["rollout"].policy()]
    journal.append_run(log, policies=["ppo"], cases=["c"], checkpoints={}, tuned="ab")
    assert tune_rollout.main(words) == 2
