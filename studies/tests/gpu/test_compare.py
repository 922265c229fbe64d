"""Measured pairs and workloads against predictions, from made-up records."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.sharing import stranger_speed
from studies.gpu.compare import FIELDS, SIMILAR, field_figures, main, pair_speeds, read_results
from studies.gpu.protocol import Job, JobRun
from studies.gpu.results_out import write_results
from studies.gpu.workloads import WORKLOADS
from studies.tests.gpu.making import MADE_UP, make_measurement, power_readings, windows_of

LARGE, SMALL = Job("cnn_large", 128), Job("graph", 16)


def run_of(job: Job, steps: int) -> JobRun:
    return msgspec.structs.replace(windows_of(job.workload, start_s=0.0, steps=[steps] * 6), job=job)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """An H200: ResNet-50 is busy 80 % of the time, a graph network 20 %; shared they keep 0.9 and 0.5."""
    held = make_measurement(
        "held", windows_of("held", start_s=0.0, steps=[1] * 6), samples=power_readings(80.0)
    )
    alone = [
        make_measurement(
            "alone",
            run_of(job, 10),
            samples=power_readings(300.0, utilisation_frac=busy, used_mib=9100, process_mib={1: 9000}),
        )
        for job, busy in ((LARGE, 0.8), (SMALL, 0.2))
    ]
    pair = make_measurement(
        "pair", run_of(LARGE, 9), run_of(SMALL, 5), mode="timeslice", samples=power_readings(320.0)
    )
    write_results(tmp_path, MADE_UP, [held, *alone, pair], [])
    return tmp_path / "rows.json"


def test_each_job_of_a_pair_has_seen_and_predicted_speeds(rows: Path) -> None:
    large, small = pair_speeds(read_results(rows))
    assert (large.gpu_type, large.mode, large.job, large.beside) == (
        "H200",
        "timeslice",
        "cnn_large-b128",
        "graph-b16",
    )
    assert (large.seen, small.seen) == (pytest.approx(0.9), pytest.approx(0.5))
    assert large.formula == pytest.approx(stranger_speed(0.8, 0.2))
    assert small.formula == pytest.approx(stranger_speed(0.2, 0.8))
    for one in (large, small):
        assert 0.5 < one.predicted <= 1.0
        assert one.ratio == pytest.approx(one.seen / one.predicted)


def test_figures_are_compared_with_the_similar_workload_on_this_gpu_type(rows: Path) -> None:
    figures = {one.field: one for one in field_figures(read_results(rows))}
    assert {one.workload for one in figures.values()} == {"cnn_large-b128"}, (
        "the graph of 16 has no similar one"
    )
    assert set(figures) == {"util_frac", "memory_mib", "dynamic_w"}
    cell = load_catalogue().cells["resnet50-imagenet-b128", "H100", "dynamic_w"]
    assert (figures["dynamic_w"].catalogue, figures["dynamic_w"].status) == (cell.value, cell.status)
    assert figures["dynamic_w"].measured == pytest.approx(220.0)
    assert figures["dynamic_w"].ratio == pytest.approx(220.0 / cell.value)


def test_tables_are_printed_and_are_json(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", str(rows)]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA H200, driver 1.2, torch 9.9\n" in printed
    assert "seen / predicted, timeslice: 2 figures" in printed
    assert "measured / catalogue, cores_each: none" in printed
    assert main(["--rows", str(rows), "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert [one["job"] for one in tables["pairs"]] == ["cnn_large-b128", "graph-b16"]
    assert len(tables["fields"]) == 3


def test_without_a_run_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert capsys.readouterr().out == (
        "nothing to compare: no runs/gpu/rows.json; on a GPU run `python -m studies.gpu.profile_catalogue`\n"
    )
    with pytest.raises(InputError, match=r"rows\.json of studies\.gpu\.profile_catalogue"):
        main(["--rows", str(tmp_path / "none.json")])


def test_similar_workloads_exist() -> None:
    labels = {Job(name, batch).label for name, one in WORKLOADS.items() for batch in one.batches}
    assert SIMILAR.keys() <= labels
    assert set(SIMILAR.values()) <= set(load_catalogue().names)
    assert all(load_catalogue().cell(name, "H100", field) for name in SIMILAR.values() for field in FIELDS)
