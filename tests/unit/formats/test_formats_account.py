"""Rules of every format: rows in = kept + named skips, damage costs one line, strict mode stops there."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError, TraceError
from rlsched.workload.formats.frame import Request
from rlsched.workload.formats.registry import FORMATS, convert_original, recognise
from rlsched.workload.trace import Trace
from tests.support.sim.samples import DAMAGED, SAMPLES, WHOLE, Sample, convert

every_sample = pytest.mark.parametrize("sample", [*WHOLE, *DAMAGED], ids=lambda one: f"{one.name}-{one.file}")
FIRST_DAMAGE = {
    "helios": "line 3: 'gpu_num': expected a number, 0 or more, got 'sixteen'",
    "philly": "line 2: expected a job in JSON, got: Invalid control character at: line 27",
    "pai": "line 2: expected 6 fields, got 5",
    "openb": "line 3: 'gpu_milli': expected 1 to 1000, got 1460",
    "acme": "line 3: expected whole GPUs, or a share of one, got 16.5",
    "sacct": "line 2: expected 17 fields, got 15",
    "swf": "line 3: expected 18 fields, got 16",
}


def rows_by_hand(sample: Sample) -> int:
    """Rows of a sample, counted without the converter."""
    text = sample.path.read_text()
    if sample.name == "philly":
        return text.count('"status"')
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(";")]
    return len(lines) - (sample.name in ("helios", "openb", "acme", "sacct"))


def test_every_format_has_a_complete_and_a_damaged_sample() -> None:
    assert {one.name for one in WHOLE} == {one.name for one in DAMAGED} == set(FORMATS) == set(FIRST_DAMAGE)


@every_sample
def test_rows_in_are_kept_or_skipped_by_name(sample: Sample) -> None:
    conversion = convert(sample)
    assert conversion.accounts[0].path == sample.path
    assert conversion.accounts[0].rows == sample.rows == rows_by_hand(sample)
    assert conversion.accounts[0].kept == len(conversion.trace) == sample.jobs
    for account in conversion.accounts:
        assert account.rows == account.kept + sum(tally.count for tally in account.skipped.values())
        assert all(reason and tally.lines for reason, tally in account.skipped.items())
        for tally in [*account.skipped.values(), *account.noted.values()]:
            assert len(tally.lines) == tally.count
    assert conversion.lost


@every_sample
def test_trace_is_in_the_normal_form(sample: Sample, tmp_path: Path) -> None:
    trace = convert(sample).trace
    assert trace.submit_s[0] == 0
    assert (np.diff(trace.submit_s) >= 0).all()
    trace.write(tmp_path / "t.csv.gz")
    back = Trace.read(tmp_path / "t.csv.gz")
    assert back.columns().keys() == trace.columns().keys()
    for header, cells in trace.columns().items():
        np.testing.assert_array_equal(back.columns()[header], cells, err_msg=header)


@every_sample
def test_compressed_copy_gives_the_same(sample: Sample, tmp_path: Path) -> None:
    shutil.copytree(sample.path.parent, tmp_path / "packed", ignore=shutil.ignore_patterns("damaged"))
    packed = tmp_path / "packed" / (sample.path.name + ".gz")
    packed.write_bytes(gzip.compress((packed.parent / sample.path.name).read_bytes()))
    assert recognise(packed) == sample.name
    there = convert_original(sample.name, Request(packed))
    here = convert(sample)
    assert there.accounts[0].skipped == here.accounts[0].skipped
    for header, cells in here.trace.columns().items():
        np.testing.assert_array_equal(there.trace.columns()[header], cells, err_msg=header)


@every_sample
def test_file_is_recognised(sample: Sample) -> None:
    assert recognise(sample.path) == sample.name


@pytest.mark.parametrize("name", ["helios", "philly", "pai", "openb"])
def test_publisher_s_folder_is_recognised(name: str) -> None:
    assert recognise(SAMPLES / name) == name
    sample = next(one for one in WHOLE if one.name == name)
    assert len(convert_original(name, Request(SAMPLES / name)).trace) == sample.jobs


@pytest.mark.parametrize("sample", WHOLE, ids=lambda one: f"{one.name}-{one.file}")
def test_complete_file_passes_the_strict_reading(sample: Sample) -> None:
    assert len(convert(sample, strict=True).trace) == sample.jobs


@pytest.mark.parametrize("sample", DAMAGED, ids=lambda one: one.name)
def test_strict_reading_stops_at_the_first_malformed_line(sample: Sample) -> None:
    with pytest.raises(TraceError) as caught:
        convert(sample, strict=True)
    assert str(caught.value).startswith(f"{sample.path}: {FIRST_DAMAGE[sample.name]}")


@pytest.mark.parametrize("sample", DAMAGED, ids=lambda one: one.name)
def test_number_and_fault_of_a_malformed_line_are_kept(sample: Sample) -> None:
    account = convert(sample).accounts[0]
    malformed = [tally for reason, tally in account.skipped.items() if reason.startswith("malformed: ")]
    assert malformed
    assert all("expected" in tally.example for tally in malformed)
    first = min(malformed, key=lambda tally: tally.lines[0])
    assert f"line {first.lines[0]}: {first.example}".startswith(FIRST_DAMAGE[sample.name])


def test_ten_malformed_lines_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(" ".join(["1"] * 18) + "\n" + "broken\n" * 25)
    account = convert_original("swf", Request(path)).accounts[0]
    assert account.skipped["malformed: number of fields"].lines == list(range(2, 12))
    assert account.skipped["malformed: number of fields"].count == 25
    assert account.rows == 26


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("helios", "cluster_log.csv", "", "expected a header line, got an empty file"),
        ("helios", "cluster_log.csv", "job_id,user\n", "line 1: expected a header with vc, gpu_num, state"),
        ("acme", "trace_seren.csv", '"job_id,user\n', "line 1: expected a header: expected a line of CSV"),
        ("openb", "openb_pod_list_default.csv", "sn,gpu\n", "line 1: expected a header with name, cpu_milli"),
        (
            "sacct",
            "jobs.txt",
            "JobID|State|Submit|Start|End\n1|COMPLETED|0|0|1\n",
            "expected AllocTRES or ReqTRES",
        ),
        ("philly", "cluster_job_log", '{"status": "Pass"}', "line 1: expected a JSON list of jobs, got"),
        ("philly", "cluster_job_log", "[]", "expected at least one job, kept none of 0 rows"),
        (
            "swf",
            "log.swf",
            "; Version: 2\n1 2 3\n",
            "kept none of 1 rows (1 malformed: number of fields); the first",
        ),
    ],
)
def test_file_without_a_usable_line(name: str, file: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        convert_original(name, Request(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_file_reports_the_last_good_line(tmp_path: Path) -> None:
    lines = [f"{job} {job} 0 60 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1" for job in range(1, 5_000)]
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-200])
    with pytest.raises(
        TraceError, match=r"log\.swf\.gz: expected a gzip file, and it is damaged after line \d+"
    ):
        convert_original("swf", Request(path))


def test_missing_parts_of_a_format_are_refused(tmp_path: Path) -> None:
    seren = SAMPLES / "acme" / "trace_seren.csv"
    for name, request, message in (
        ("acme", Request(seren, cluster_name="c"), "acme does not describe nodes; leave out --cluster-out"),
        ("acme", Request(seren, timezone="UTC"), "acme needs no time zone; leave out --timezone"),
        (
            "acme",
            Request(seren, processors="gpus"),
            "acme distinguishes GPUs from CPU cores; leave out --processors",
        ),
        (
            "sacct",
            Request(SAMPLES / "sacct", timezone="Mars/Phobos"),
            "expected a file for sacct, got a folder",
        ),
        (
            "sacct",
            Request(SAMPLES / "sacct/jobs.txt", timezone="Mars/Phobos"),
            "'Mars/Phobos' is not known here",
        ),
        ("acme", Request(SAMPLES / "acme"), "got trace_kalos.csv, trace_seren.csv; name the file"),
        ("philly", Request(tmp_path), "expected one cluster_job_log for philly, got none"),
        ("slurm", Request(seren), "unknown format 'slurm'; known: normal, helios, philly, pai, openb"),
        (
            "philly",
            Request(SAMPLES / "philly/damaged", cluster_name="c"),
            "expected cluster_machine_list next to",
        ),
    ):
        with pytest.raises(InputError) as caught:
            convert_original(name, request)
        assert message in str(caught.value)


def test_unrecognised_file_is_read_as_the_normal_form_or_refused(tmp_path: Path) -> None:
    assert recognise(tmp_path / "missing.csv.gz") == "normal"
    assert recognise(tmp_path / "any.parquet") == "normal"
    for text in ("job_id,submit_time,duration,num_gpus\na,0,1,1\n", "anything\n", ""):
        (tmp_path / "t.csv").write_text(text)
        assert recognise(tmp_path / "t.csv") == "normal"
    (tmp_path / "notes.txt").write_text("a page of notes\n")
    with pytest.raises(InputError, match=r"none of the known formats; select one with --from \(helios, "):
        recognise(tmp_path / "notes.txt")
    with pytest.raises(TraceError, match="cannot read this file: No such file"):
        recognise(tmp_path / "missing.swf")
    with pytest.raises(InputError, match="looks like none"):
        recognise(tmp_path)
    (tmp_path / "cluster_log.csv").write_text("")
    (tmp_path / "pai_job_table.csv").write_text("")
    with pytest.raises(InputError, match="looks like helios and pai; select one"):
        recognise(tmp_path)
