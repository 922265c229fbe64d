"""Studies of clusters and sizes without tuning: their cases, rows, sequences and tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.load import offered_load
from studies.policy import bar, bar_studies, opponents, runs, synthetic
from studies.policy.cases import SYNTHETIC, TRACES, UNSEEN, Case, measured_jobs
from studies.policy.runs import Job

SIZES = bar_studies.STUDIES["sizes"]
OWN = [study for study in bar_studies.STUDIES.values() if study.own]


class TestStudies:
    def test_clusters_were_not_used_for_tuning(self) -> None:
        tuned = opponents.read_tuned()
        for study in OWN:
            assert not set(study.own) & {*tuned.traces, *TRACES}
            for trace in study.own:
                rows = bar_studies.rows_of(study, tuned, trace, [])
                assert not [one.label for one in rows if "by trace" in one.label]
                assert {one.label for one in rows} >= {"gittins", "qssf", "qssf-backfill"}
                there = {one.policy for one in rows if one.role == "policy"}
                assert there == (set(study.default) if synthetic.for_tested(trace) else set())

    def test_study_uses_only_its_traces(self) -> None:
        study = bar_studies.STUDIES["unseen"]
        assert study.traces([], TRACES) == list(UNSEEN)
        assert study.traces(["ms_itp_09", "helios_venus"], TRACES) == ["ms_itp_09"]
        assert bar_studies.STUDIES["good"].traces([], TRACES) == list(TRACES)
        assert bar_studies.STUDIES["good"].traces(["ms_itp_09"], TRACES) == ["ms_itp_09"]

    def test_synthetic_sequence_belongs_to_no_split(self) -> None:
        for part in ("validation", "test"):
            assert {case.part for case in SIZES.cases(SIZES.own, part)} == {SYNTHETIC}

    def test_the_test_split_has_no_synthetic_sequences(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["--study", "sizes", "--split", "test", "--out", str(tmp_path), "--traces", str(tmp_path)]
        log = tmp_path / "log.jsonl"
        assert bar.main([*words, "--log", str(log), "--workers", "1"]) == 0
        assert "0 of 0 results run" in capsys.readouterr().err
        assert not log.exists()

    @pytest.mark.parametrize("trace", ["ms_itp_01", "ms_itp_09", "philly/2869ce"])
    def test_smaller_clusters_have_jobs_to_measure(self, shared_data: Path, trace: str) -> None:
        jobs = measured_jobs(shared_data / "traces", Case(trace=trace, part="validation", load=0.95))
        assert jobs >= (100 if trace.startswith("philly") else 40)


class TestSequences:
    @pytest.mark.parametrize("name", ["helios-like/16", "philly-like/128"])
    def test_size_and_load_are_exact_and_the_middle_is_measured(self, name: str) -> None:
        work = synthetic.synthetic_workload(Case(trace=name, part=SYNTHETIC, load=0.95))
        kind, gpus, jobs = synthetic.SEQUENCES[name]
        assert (work.trace.name, work.spec.num_gpus, len(work.trace)) == (f"{kind}-like", gpus, jobs)
        measured = work.window.measured(work.trace)
        assert offered_load(work.trace.select(measured), work.spec) == pytest.approx(0.95, rel=1e-9)
        first, last = np.flatnonzero(measured)[[0, -1]]
        assert 0.1 * jobs < first < last < 0.98 * jobs
        assert work.trace.num_gpus.max() <= gpus / 2

    def test_sizes_from_16_to_10_000_gpus(self) -> None:
        sizes = sorted({gpus for _, gpus, _ in synthetic.SEQUENCES.values()})
        assert sizes == [16, 128, 1_024, 10_000]
        asked = {gpus for name, (_, gpus, _) in synthetic.SEQUENCES.items() if synthetic.for_tested(name)}
        assert sorted(asked) == sizes
        assert not synthetic.for_tested("helios-like/10000")
        assert synthetic.for_tested("ms_itp_09")

    def test_invalid_sequence_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"expected a sequence of helios-like/16.*got 'helios-like/17'"):
            synthetic.synthetic_workload(Case(trace="helios-like/17", part=SYNTHETIC, load=0.95))
        with pytest.raises(InputError, match="in 'test'"):
            synthetic.synthetic_workload(Case(trace="helios-like/16", part="test", load=0.95))

    def test_sequence_is_run_like_a_trace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(synthetic.SEQUENCES, "helios-like/16", ("helios", 16, 400))
        case = SIZES.cases(["helios-like/16"], "validation")[0]
        path = runs.run_job(Job(case=case, policy=Policy("qssf-backfill")), tmp_path / "no traces", tmp_path)
        found = runs.read_result(path)
        assert (found.gpus, found.nodes) == (16, 2)
        assert found.load_frac == pytest.approx(0.95)
        assert 0 < found.metrics.jobs < 400 * 0.9
        assert found.metrics.unfinished == 0
        assert found.metrics.decisions > found.metrics.jobs
