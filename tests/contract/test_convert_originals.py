"""`rlsched trace convert` on a sample of each publisher's format, and on a damaged one of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.formats.account import AGAIN
from rlsched.workload.formats.registry import FORMATS
from rlsched.workload.trace import Trace
from tests.support.sim.samples import DAMAGED, SAMPLES, WHOLE, Sample

ROOT = Path(__file__).resolve().parent.parent.parent
Capture = pytest.CaptureFixture[str]
NORMAL = "job_id,submit_time,duration,num_gpus\nb,5,60,4\na,0,60,1\n"


def convert(*args: str | Path) -> int:
    return run(["trace", "convert", *(str(arg) for arg in args)])


def refusal(capsys: Capture) -> str:
    """The error: one line on standard error, nothing on standard output."""
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("sample", [*WHOLE, *DAMAGED], ids=lambda one: f"{one.name}-{one.file}")
@pytest.mark.parametrize("named", [True, False], ids=["from", "recognised"])
def test_json_accounts_for_every_row(sample: Sample, named: bool, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "t.csv.gz"
    how = ["--from", sample.name] if named else []
    assert convert(*how, sample.path, out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == sample.name
    assert (report["source"], report["trace"], report["cluster"]) == (str(sample.path), str(out), None)
    assert (report["rows"], report["kept"]) == (sample.rows, sample.jobs)
    for table in report["tables"]:
        skips = sum(tally["count"] for tally in table["skipped"].values())
        assert table["rows"] == table["kept"] + skips
    assert report["lost"]
    assert len(Trace.read(out)) == sample.jobs


@pytest.mark.parametrize("sample", DAMAGED, ids=lambda one: one.name)
def test_damaged_lines_are_named_and_strict_stops(sample: Sample, tmp_path: Path, capsys: Capture) -> None:
    assert convert(sample.path, tmp_path / "t.csv") == 0
    said = capsys.readouterr().out
    assert (
        f"{sample.path}: {sample.rows} rows, {sample.jobs} kept, {sample.rows - sample.jobs} skipped\n"
        in said
    )
    assert "skipped 1: malformed: " in said or "skipped 2: malformed: " in said
    assert ": expected " in said
    (tmp_path / "t.csv").unlink()
    assert convert(sample.path, tmp_path / "t.csv", "--strict") == 2
    assert f"{sample.path}: line " in refusal(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name, one in FORMATS.items() if one.nodes])
def test_folder_gives_trace_and_cluster(name: str, tmp_path: Path, capsys: Capture) -> None:
    trace, cluster = tmp_path / "t.parquet", tmp_path / f"{name}.cluster.toml"
    assert convert(SAMPLES / name, trace, "--cluster-out", cluster) == 0
    spec = ClusterSpec.read(cluster)
    assert spec.name == name
    assert f"{cluster}: {spec.num_nodes} nodes, {spec.num_gpus} GPUs\n" in capsys.readouterr().out
    assert run(["trace", "describe", str(trace), "--cluster", str(cluster)]) == 0


def test_options_of_single_formats(tmp_path: Path, capsys: Capture) -> None:
    log, jobs = SAMPLES / "swf" / "log.swf", SAMPLES / "sacct" / "jobs.txt"
    cluster = tmp_path / "c.toml"
    assert convert(log, tmp_path / "t.csv", "--processors", "gpus", "--cluster-out", cluster) == 0
    assert ClusterSpec.read(cluster).num_gpus == 32
    assert convert(jobs, tmp_path / "t.csv", "--timezone", "Europe/Berlin") == 0
    assert "second 0 is 2024-03-01 08:00:00 UTC" in capsys.readouterr().out


def test_describe_uses_the_wall_clock_of_a_converted_trace(tmp_path: Path, capsys: Capture) -> None:
    trace, again = tmp_path / "t.csv.gz", tmp_path / "t.csv"
    jobs = SAMPLES / "sacct" / "jobs.txt"
    assert convert(jobs, trace, "--timezone", "Europe/Berlin") == 0
    assert convert(trace, again) == 0
    for file, options, origin in (
        (trace, [], "2024-03-01T09:00:00+01:00"),
        (again, [], "2024-03-01T09:00:00+01:00"),
        (trace, ["--origin", "2024-01-01"], "2024-01-01T00:00:00"),
    ):
        capsys.readouterr()
        assert run(["trace", "describe", str(file), "--json", *options]) == 0
        clock = json.loads(capsys.readouterr().out)["clock"]
        assert (clock["origin"], clock["days"][0]) == (origin, "Monday")
    assert run(["trace", "describe", str(trace)]) == 0
    assert "Fri 2024-03-01 09:00" in capsys.readouterr().out


def test_several_exports_are_one_history(tmp_path: Path, capsys: Capture) -> None:
    head, *lines = (SAMPLES / "sacct" / "jobs.txt").read_text().splitlines(keepends=True)
    parts = tmp_path / "a.txt", tmp_path / "b.txt"
    parts[0].write_text("".join([head, *lines[:6]]))
    parts[1].write_text("".join([head, *lines[4:]]))
    assert convert(*parts, tmp_path / "t.csv", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["kept"]) == (15, 6)
    assert report["skipped"][AGAIN] == {"count": 2, "lines": [], "example": None}
    assert [table["file"] for table in report["tables"]] == [str(part) for part in parts]
    assert report["tables"][1]["skipped"][AGAIN]["lines"] == [2, 3]
    whole = convert(SAMPLES / "sacct" / "jobs.txt", tmp_path / "whole.csv")
    assert (whole, (tmp_path / "whole.csv").read_text()) == (0, (tmp_path / "t.csv").read_text())
    capsys.readouterr()
    (tmp_path / "in.csv").write_text(NORMAL)
    seren = SAMPLES / "acme" / "trace_seren.csv"
    for files, message in (
        ((seren, seren), "acme is read from one file, got 2; several files are allowed only for: sacct"),
        ((tmp_path / "in.csv", tmp_path / "in.csv"), "IN: expected one file in rlsched's own format, got 2"),
    ):
        assert convert(*files, tmp_path / "o.csv") == 2
        assert message in refusal(capsys)


def test_history_without_gpus_is_converted_with_a_warning(tmp_path: Path, capsys: Capture) -> None:
    text = (SAMPLES / "sacct" / "jobs.txt").read_text()
    (tmp_path / "jobs.txt").write_text(re.sub(r"gres/gpu(:\w+)?=\d+,", "", text))
    for how in ([], ["--json"]):
        assert convert(tmp_path / "jobs.txt", tmp_path / "t.csv", *how) == 0
        said = capsys.readouterr().err
        assert said.startswith(
            f"warning: {tmp_path / 'jobs.txt'}: no job of this history has GPUs (jobs: 6): "
        )
        assert "--format ...,ReqTRES,AllocTRES" in said
        assert said.count("\n") == 1


def test_normal_form_is_rewritten_unchanged(tmp_path: Path, capsys: Capture) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(NORMAL)
    for how in ([], ["--from", "normal"], ["--strict"]):
        assert convert(source, target, *how) == 0
        assert capsys.readouterr().out == f"{target}: 2 jobs\n"
        assert target.read_text() == (
            "job_id,user,vc,name,submit_time,duration,num_gpus,num_cpus,status\na,,,,0,60,1,,\nb,,,,5,60,4,,\n"
        )
    assert convert(source, target, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["rows"], report["kept"], report["skipped"]) == ("normal", 2, 2, {})


def test_errors_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in.csv").write_text(NORMAL)
    (tmp_path / "notes.txt").write_text("a page of notes\n")
    seren = SAMPLES / "acme" / "trace_seren.csv"
    for args, message in (
        (
            (tmp_path / "in.csv", tmp_path / "o.csv", "--cluster-out", "c.toml"),
            "looks like rlsched's own format",
        ),
        ((tmp_path / "in.csv", tmp_path / "o.csv", "--from", "helios"), "expected a header with user, vc"),
        ((tmp_path / "notes.txt", tmp_path / "o.csv"), "looks like none of the known formats"),
        ((tmp_path / "missing.txt", tmp_path / "o.csv"), "cannot read this file: No such file"),
        ((tmp_path / "missing.csv", tmp_path / "o.csv"), "cannot read this trace: No such file"),
        ((seren, tmp_path / "o.csv", "--from", "slurm"), "unknown format 'slurm'; known: normal, helios"),
        ((seren, tmp_path / "o.txt"), "expected a file that ends in .csv, .csv.gz, .parquet"),
        ((seren, tmp_path / "o.csv", "--cluster-out", "c.toml"), "acme does not describe nodes"),
        ((seren, tmp_path / "none" / "o.csv"), "cannot write this trace"),
        (
            (SAMPLES / "openb", tmp_path / "o.csv", "--cluster-out", tmp_path / "no" / "c.toml"),
            "cannot write this",
        ),
    ):
        assert convert(*args) == 2
        assert message in refusal(capsys)


def test_documentation_lists_every_format_and_its_columns(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "traces.md").read_text(encoding="utf-8")
    for sample in WHOLE:
        section = page.partition(f"\n## `{sample.name}`")[2].partition("\n## ")[0]
        assert section, sample.name
        assert convert(sample.path, tmp_path / "t.csv") == 0
        columns = Trace.read(tmp_path / "t.csv").columns()
        filled = [name for name, cells in columns.items() if not set(cells.astype(str)) <= {"", "nan"}]
        assert [name for name in filled if f"`{name}`" not in section] == [], sample.name
