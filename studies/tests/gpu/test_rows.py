"""Rows of the catalogue from made-up records, and from a recorded run on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched.models.catalogue import table
from studies.gpu.protocol import Job, Measurement, encode, read_record
from studies.gpu.rows import (
    REHEARSAL,
    CatalogueRow,
    PairRow,
    Rows,
    gpu_type_of,
    read_catalogue_csv,
    relative_speeds,
    to_csv,
)
from studies.gpu.workloads import WORKLOADS
from studies.tests.gpu.making import MADE_UP, make_measurement, power_readings, windows_of

RECORDED = Path(__file__).with_name("samples") / "cpu_run.jsonl"
"""Record of a run on a CPU (`--rehearse`): windows of small workloads, with no figure of a GPU."""


def make_records() -> list[Measurement]:
    """Idle at 50 W, a held context at 80 W, `cnn` at 200 W and 50 samples a second, then a pair and cores."""
    alone = windows_of("cnn", start_s=0.0, steps=[10] * 6)
    return [
        make_measurement("idle", samples=power_readings(50.0)),
        make_measurement(
            "held", windows_of("held", start_s=0.0, steps=[1] * 6), samples=power_readings(80.0)
        ),
        make_measurement(
            "alone",
            alone,
            samples=power_readings(200.0, utilisation_frac=0.6, used_mib=350, process_mib={1: 240}),
        ),
        make_measurement(
            "alone", windows_of("rnn", start_s=0.0, steps=[20] * 6), samples=power_readings(100.0)
        ),
        make_measurement(
            "pair",
            windows_of("cnn", start_s=0.0, steps=[9] * 6),
            windows_of("rnn", start_s=0.5, steps=[10] * 6),
            mode="mps",
            samples=power_readings(230.0),
        ),
        make_measurement("cores", windows_of("cnn", start_s=0.0, steps=[2] * 6), cores=1),
        make_measurement("cores", windows_of("cnn", start_s=0.0, steps=[10] * 6), cores=4),
    ]


def cells(rows: list[CatalogueRow]) -> dict[tuple[str, str], float]:
    return {(row.workload, row.field): row.value for row in rows}


def test_rows_of_the_gpu_and_of_a_workload() -> None:
    found = cells(Rows(MADE_UP, make_records()).catalogue())
    assert found["", "idle_w"] == 50.0
    assert found["", "static_w"] == 80.0
    assert found["", "memory_mib"] == 1000.0
    assert found["cnn-b10", "util_frac"] == pytest.approx(0.6)
    assert found["cnn-b10", "memory_mib"] == 240.0
    assert found["cnn-b10", "power_w"] == 200.0
    assert found["cnn-b10", "dynamic_w"] == 120.0, "above the held context, not above idle"
    assert found["cnn-b10", "samples_per_s"] == 50.0, "ten samples a step, five steps a second"
    assert found["cnn-b10", "energy_per_sample_j"] == 4.0
    assert found["cnn-b10", "speed_on_1_cores"] == 0.2
    assert found["cnn-b10", "speed_on_4_cores"] == 1.0
    assert found["cnn-b10", "cores_each"] == pytest.approx(5 ** (1 / 0.83))
    assert ("rnn-b10", "util_frac") not in found, "no readings, no row"


def test_every_row_has_a_source() -> None:
    rows = Rows(MADE_UP, make_records()).catalogue()
    assert {row.gpu_type for row in rows} == {"H200"}
    assert {row.measured_on for row in rows} == {"2026-01-02"}
    by_field = {row.field: row for row in rows}
    assert by_field["samples_per_s"].status == "measured"
    assert by_field["cores_each"].status == "fitted"
    for part in ("profile_catalogue.py", "NVIDIA H200", "driver 1.2", "torch 9.9", "bfloat16", "5 readings"):
        assert part in by_field["samples_per_s"].source


def test_pair_is_relative_to_each_single_job() -> None:
    (pair,) = Rows(MADE_UP, make_records()).pairs()
    assert (pair.mode, pair.a, pair.b) == ("mps", "cnn-b10", "rnn-b10")
    assert (pair.speed_a, pair.speed_b) == pytest.approx((0.9, 0.5))
    assert pair.power_w == 230.0
    assert Rows(MADE_UP, [one for one in make_records() if one.kind != "alone"]).pairs() == []


def test_rows_fit_the_catalogue() -> None:
    rows = [row for row in Rows(MADE_UP, make_records()).catalogue() if row.workload]
    assert {row.field for row in rows} >= {"util_frac", "memory_mib", "dynamic_w", "cores_each"}
    own = {"power_w", "samples_per_s", "energy_per_sample_j", "speed_on_1_cores", "speed_on_4_cores"}
    assert {row.field for row in rows} - own <= set(table.FIELDS)
    assert {row.status for row in rows} <= set(table.STATUSES)
    assert REHEARSAL not in table.STATUSES
    assert {"workload", "gpu_type", "field", *table.Cell.__struct_fields__} <= set(CatalogueRow._fields)
    assert set(table.WorkloadPair.__struct_fields__) <= set(PairRow._fields)
    assert Job("lstm", 32).label == table.workload_name("lstm", 32)


def test_last_measurement_of_a_case_counts() -> None:
    again = make_measurement("alone", windows_of("cnn", start_s=0.0, steps=[20] * 6))
    assert cells(Rows(MADE_UP, [*make_records(), again]).catalogue())["cnn-b10", "samples_per_s"] == 100.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("rehearsal on a CPU", "rehearsal on a CPU"),
    ],
)
def test_gpu_types_use_catalogue_names(name: str, kind: str) -> None:
    assert gpu_type_of(name) == kind


def test_rows_are_read_back_from_their_file() -> None:
    rows = Rows(MADE_UP, make_records()).catalogue()
    back = read_catalogue_csv(to_csv(rows, CatalogueRow._fields), "rows.csv")
    assert [row._replace(value=0, spread=0) for row in back] == [
        row._replace(value=0, spread=0) for row in rows
    ]
    assert [row.value for row in back] == pytest.approx([row.value for row in rows], rel=1e-5)
    assert [row.spread is None for row in back] == [row.spread is None for row in rows]


@pytest.mark.parametrize(
    ("text", "says"),
    [("a,b\n1,2\n", "expected the columns"), ("{header}\nx,V100,speed,fast,,m,s,d\n", "line 2")],
)
def test_invalid_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_catalogue_csv(text.replace("{header}", ",".join(CatalogueRow._fields)), "rows.csv")


def test_speeds_relative_to_another_gpu() -> None:
    rows = Rows(MADE_UP, make_records()).catalogue()
    base = [row._replace(gpu_type="V100", value=row.value / 4, spread=0.0) for row in rows]
    found = {row.workload: row for row in relative_speeds(rows, base)}
    assert found["cnn-b10"].value == pytest.approx(4.0)
    assert found["cnn-b10"].field == "speed"
    assert "relative to V100 of 2026-01-02" in found["cnn-b10"].source
    with pytest.raises(InputError, match="one GPU type"):
        relative_speeds(rows, [*base, *rows])
    with pytest.raises(InputError, match="none of these workloads"):
        relative_speeds(rows, [row._replace(workload="other") for row in base])


def test_recorded_run_gives_rows_without_gpu_figures() -> None:
    host, measurements = read_record(RECORDED)
    assert host.is_rehearsal
    rows, pairs = Rows(host, measurements).catalogue(), Rows(host, measurements).pairs()
    assert {row.status for row in [*rows, *pairs]} == {"rehearsal"}
    assert {row.field for row in rows} <= {
        "samples_per_s",
        "cores_each",
        "speed_on_1_cores",
        "speed_on_2_cores",
    }
    timed = {row.workload.rpartition("-b")[0] for row in rows if row.field == "samples_per_s"}
    assert timed == set(WORKLOADS)
    assert len(pairs) == sum(one.kind == "pair" for one in measurements) >= 3
    assert all(row.value > 0 for row in rows)


def test_recorded_speed_agrees_with_a_second_count() -> None:
    host, measurements = read_record(RECORDED)
    found = cells(Rows(host, measurements).catalogue())
    for one in (one for one in measurements if one.kind == "alone"):
        run = one.runs[0]
        seconds = run.windows[-1].end_s - run.windows[0].start_s
        mean = sum(window.steps for window in run.windows) * run.warm.samples_per_step / seconds
        # median of windows against the mean of the whole run, on a shared machine
        assert found[run.job.label, "samples_per_s"] == pytest.approx(mean, rel=0.5)


def test_recorded_jobs_were_trained() -> None:
    _, measurements = read_record(RECORDED)
    for one in measurements:
        for run in one.runs:
            assert run.ended.steps >= sum(window.steps for window in run.windows) > 0
            if run.job.workload != "ppo" and one.kind == "alone":
                assert run.ended.last_loss < run.ended.first_loss, run.job.label


def test_recorded_pairs_ran_at_the_same_time() -> None:
    _, measurements = read_record(RECORDED)
    for one in (one for one in measurements if one.kind == "pair"):
        starts = [run.windows[0].start_s for run in one.runs]
        ends = [run.windows[-1].end_s for run in one.runs]
        assert max(starts) - min(starts) < 0.5, "they wait for each other"
        assert min(ends) - max(starts) >= 1.0


def test_truncated_record_keeps_complete_lines(tmp_path: Path) -> None:
    lines = [encode(MADE_UP), *(encode(one) for one in make_records())]
    path = tmp_path / "record.jsonl"
    path.write_text("\n".join(lines)[:-20])
    host, measurements = read_record(path)
    assert host == MADE_UP
    assert measurements == make_records()[:-1]
    path.write_text("\n".join([lines[0], "{}", lines[1]]))
    with pytest.raises(InputError, match="line 2: expected a measurement"):
        read_record(path)
    path.write_text("job_id,user\n")
    with pytest.raises(InputError, match="line 1: expected the host"):
        read_record(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_record(tmp_path / "absent.jsonl")
