"""Reading traces: accepted input, and the error for each kind of bad input."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError, TraceError
from rlsched.workload import table_files, validate
from rlsched.workload.trace import Trace

HEADER = "job_id,user,vc,name,submit_time,duration,num_gpus,num_cpus,status\n"
WITH_ORIGIN = "job_id,submit_time,duration,num_gpus,origin\n"


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_known_values_and_unknown_ones(tmp_path: Path) -> None:
    trace = Trace.read(write(tmp_path, HEADER + "a,ann,v1,train,0,10.5,2,,ok\nb,,,,3,0,0.25,4,\n"))
    assert trace.name == "t"
    assert trace.job_id.tolist() == ["a", "b"]
    assert trace.user.tolist() == ["ann", ""]
    assert trace.job_name.tolist() == ["train", ""]
    assert trace.duration_s.tolist() == [10.5, 0.0]
    assert trace.num_gpus.tolist() == [2.0, 0.25]
    assert np.isnan(trace.num_cpus[0])
    assert trace.num_cpus[1] == 4
    assert np.isnan(trace.predicted_s).all()
    assert np.isnan(trace.predicted_spread).all()
    assert trace.gpu_type.tolist() == ["", ""]
    assert trace.extra == {}


def test_rows_are_sorted_by_submission_and_ties_keep_their_order(tmp_path: Path) -> None:
    rows = "late,,,,9,1,1,,\nb,,,,5,1,1,,\na,,,,5,1,1,,\nfirst,,,,0,1,1,,\n"
    trace = Trace.read(write(tmp_path, HEADER + rows))
    assert trace.job_id.tolist() == ["first", "b", "a", "late"]


def test_optional_columns(tmp_path: Path) -> None:
    text = (
        "job_id,submit_time,duration,num_gpus,predicted_duration,predicted_spread,time_limit,gpu_type,"
        "preemptible,queue_s,x_team\n"
        "a,0,1,1,2.5,0.5,60,V100,TRUE,7,red\nb,1,1,1,,,,,,,\n"
    )
    trace = Trace.read(write(tmp_path, text))
    assert trace.predicted_s[0] == 2.5
    assert trace.predicted_spread[0] == 0.5
    assert trace.time_limit_s[0] == 60
    assert trace.gpu_type.tolist() == ["V100", ""]
    assert trace.extra["preemptible"].tolist() == ["true", ""]
    assert trace.extra["queue_s"][0] == 7
    assert np.isnan(trace.extra["queue_s"][1])
    assert trace.extra["x_team"].tolist() == ["red", ""]


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ("b,,,,1,-5,1,,", "duration", "0 or more, got '-5'"),
        ("b,,,,1,nan,1,,", "duration", "got 'nan'"),
        ("b,,,,1,inf,1,,", "duration", "got 'inf'"),
        ("b,,,,1,1e999,1,,", "duration", "got '1e999'"),
        ("b,,,,1,1_000,1,,", "duration", "got '1_000'"),
        ("b,,,,1,,1,,", "duration", "got ''"),
        ("b,,,,-1,5,1,,", "submit_time", "got '-1'"),
        ("b,,,,soon,5,1,,", "submit_time", "got 'soon'"),
        ("b,,,,1,5,-1,,", "num_gpus", "got '-1'"),
        ("b,,,,1,5,1.5,,", "num_gpus", "a whole number of GPUs, or a share between 0 and 1, got '1.5'"),
        ("b,,,,1,5,,,", "num_gpus", "got ''"),
        ("b,,,,1,5,1,many,", "num_cpus", "or blank, got 'many'"),
        ("b,,,,1,5,1,nan,", "num_cpus", "got 'nan'"),
        (",,,,1,5,1,,", "job_id", "not blank, got ''"),
        ("a,,,,1,5,1,,", "job_id", "row 2 has the same id), got 'a'"),
    ],
)
@pytest.mark.parametrize("first", ["a,,,,0,1,1,,", 'a,"",,,0,1,1,,'], ids=["plain", "quoted"])
def test_invalid_value_is_named_with_its_place(
    tmp_path: Path, first: str, row: str, column: str, expected: str
) -> None:
    path = write(tmp_path, HEADER + first + "\n" + row + "\n")
    with pytest.raises(TraceError) as caught:
        Trace.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: row 3, column '{column}': expected ")
    assert message.endswith(expected)
    assert "\n" not in message
    assert caught.value.exit_code == 2


def test_row_is_the_line_even_after_blank_lines_and_line_breaks_in_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + 'a,"two\nlines",,,0,1,1,,\n\nb,,,,1,-1,1,,\n')
    with pytest.raises(TraceError, match="row 5, column 'duration'"):
        Trace.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got an empty file"),
        (HEADER, "expected at least one job"),
        (
            "job_id,submit_time,duration,num_gpus,gpus\na,0,1,1,1\n",
            "unknown column 'gpus'; known: job_id, user",
        ),
        ("job_id,submit_time,duration,num_gpus,x_\na,0,1,1,1\n", "unknown column 'x_'"),
        ("job_id,submit_time,duration,num_gpus,user,user\na,0,1,1,u,u\n", "column 'user' occurs twice"),
        ("job_id,submit_time\na,0\n", "missing columns duration, num_gpus; got job_id, submit_time"),
        (HEADER + "a,,,,0,1,1,\n", "row 2: expected 9 values as in the header, got 8"),
        (HEADER + 'a,"open,,,0,1,1,,\n', "not valid CSV"),
        (HEADER + "a,\0,,,0,1,1,,\n", "without NUL"),
        (HEADER + f"a,{'u' * 1001},,,0,1,1,,\n", "column 'user': expected text of at most 1000 characters"),
        (WITH_ORIGIN + "a,0,1,1,noon\n", "row 2, column 'origin': expected the same time in every row"),
        (
            "job_id,submit_time,duration,num_gpus,gpu_type,prefer\na,0,1,1,,H100\nb,0,1,1,A100|T4,V100|H\n",
            "row 3, column 'prefer': expected a type that the column gpu_type accepts, A100|T4, got 'V100|H'",
        ),
        (
            WITH_ORIGIN + "a,0,1,1,2024-03-01\nb,0,1,1,\nc,0,1,1,2024-03-02\n",
            "row 4, column 'origin': expected the same time in every row, such as 2024-03-01T09:00:00+01:00, "
            "or blank, got '2024-03-02'",
        ),
    ],
)
def test_invalid_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        Trace.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER.encode() + b"a,\xff\xfe,,,0,1,1,,\n")
    with pytest.raises(TraceError, match="row 2: expected UTF-8"):
        Trace.read(path)


def test_damaged_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    whole = gzip.compress((HEADER + "a,,,,0,1,1,,\n").encode())
    for damaged in (b"not gzip", whole[:-9], whole[:12] + b"\0\0\0" + whole[15:]):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"t\.csv\.gz"):
            Trace.read(path)


def test_missing_file_and_another_suffix(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read this trace: No such file"):
        Trace.read(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot read this trace: No such file"):
        Trace.read(tmp_path / "none.parquet")
    with pytest.raises(TraceError, match=r"ends in \.csv, \.csv\.gz, \.parquet"):
        Trace.read(tmp_path / "t.xlsx")


def test_invalid_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(TraceError, match="not a Parquet file"):
        Trace.read(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.from_columns(name="t", submit_s=[0], duration_s=[1], num_gpus=[1])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"install .*\[parquet\]'"):
        trace.write(tmp_path / "t.parquet")


def test_from_columns_checks_like_a_file() -> None:
    with pytest.raises(TraceError, match="made: row 2, column 'duration': expected seconds"):
        Trace.from_columns(name="made", submit_s=[0, 1], duration_s=[1.0, -1.0], num_gpus=[1, 1])
    with pytest.raises(TraceError, match=r"column 'duration': .*got 'nan'"):
        Trace.from_columns(name="made", submit_s=[0], duration_s=[np.nan], num_gpus=[1])
    with pytest.raises(TraceError, match="differ in length"):
        Trace.from_columns(name="made", submit_s=[0, 1], duration_s=[1.0], num_gpus=[1, 1])
    with pytest.raises(TraceError, match="unknown attribute 'gpus'"):
        Trace.from_columns(name="made", submit_s=[0], duration_s=[1.0], num_gpus=[1], gpus=[1])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("user", ["ann", "zoë", '"ann, b"'])
def test_any_line_endings_and_cell_formats(tmp_path: Path, end: str, user: str) -> None:
    lines = [HEADER.strip(), f"a,{user},,,0,1e1,1,+2,ok", f"b,{user},,,3.5,20.25,0.5,,"]
    path = tmp_path / "t.csv"
    path.write_bytes(end.join([*lines, ""]).encode())
    trace = Trace.read(path)
    assert trace.user.tolist() == [user.strip('"')] * 2
    assert trace.submit_s.tolist() == [0, 3.5]
    assert trace.duration_s.tolist() == [10, 20.25]
    assert trace.num_cpus[0] == 2
    assert np.isnan(trace.num_cpus[1])


def test_cells_read_as_bytes_keep_the_length_limit() -> None:
    assert table_files.LONGEST <= validate.MAX_TEXT


def test_file_without_an_end_of_line_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    trace = Trace.read(write(tmp_path, "\ufeff" + HEADER + "a,,,,0,1,1,,\nb,,,,1,12345.75,1,,last"))
    assert trace.duration_s.tolist() == [1, 12345.75]
    assert trace.status.tolist() == ["", "last"]


def test_trace_has_its_own_arrays() -> None:
    submit_s, user = np.array([0.0, 1.0]), np.array(["ann", "bob"])
    trace = Trace.from_columns(name="t", submit_s=submit_s, duration_s=submit_s, num_gpus=[1, 1], user=user)
    submit_s[0], user[0] = 9.0, "eve"
    assert trace.submit_s.tolist() == trace.duration_s.tolist() == [0, 1]
    assert trace.user.tolist() == ["ann", "bob"]


def test_selection_of_all_jobs_is_the_trace_itself() -> None:
    trace = Trace.from_columns(name="t", submit_s=[0, 5], duration_s=[1, 2], num_gpus=[1, 2])
    for everything in (slice(None), slice(0, 2), slice(0, 9), np.array([True, True])):
        assert trace.select(everything) is trace
    for other in (slice(1, None), slice(None, None, -1), np.array([True, False]), [0, 1], np.array([0, 1])):
        assert trace.select(other) is not trace
    assert trace.select([0, 1]).job_id.tolist() == trace.job_id.tolist()


def test_select_keeps_times_and_all_columns() -> None:
    trace = Trace.from_columns(
        name="t",
        submit_s=[0, 5, 9],
        duration_s=[1, 2, 3],
        num_gpus=[1, 2, 4],
        predicted_s=[1, np.nan, 3],
        extra={"x_team": ["a", "b", "c"]},
    )
    part = trace.select(trace.num_gpus > 1)
    assert len(part) == 2
    assert part.submit_s.tolist() == [5, 9]
    assert part.job_id.tolist() == ["1", "2"]
    assert part.extra["x_team"].tolist() == ["b", "c"]
    assert trace.select(slice(0, 1)).submit_s.tolist() == [0]


def test_origin_is_read_from_any_row(tmp_path: Path) -> None:
    path = write(tmp_path, WITH_ORIGIN + "a,5,1,1,\nb,0,1,1,2024-03-01T09:00:00+01:00\n")
    origin = datetime(2024, 3, 1, 8, tzinfo=UTC)
    assert Trace.read(path).origin == Trace.read(path).select([1]).origin == origin
    assert Trace.read(write(tmp_path, WITH_ORIGIN + "a,5,1,1,\n")).origin is None


def test_names_that_look_like_missing_values_are_names(tmp_path: Path) -> None:
    names = ["nan", "None", "null", "NA", "N/A", "-1"]
    rows = "".join(f"{k},{name},{name},{name},0,1,1,,{name}\n" for k, name in enumerate(names))
    trace = Trace.read(write(tmp_path, HEADER + rows))
    for cells in (trace.user, trace.vc, trace.job_name, trace.status):
        assert cells.tolist() == names
