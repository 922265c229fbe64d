"""Writing traces: the bytes, and reading them back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import TraceError
from rlsched.workload.trace import Trace

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def make_trace() -> Trace:
    return Trace.from_columns(
        name="t",
        job_id=["a", 'b,"c"'],
        submit_s=[0.0, 7.25],
        duration_s=[3600.0, 0.1],
        num_gpus=[8, 0.5],
        num_cpus=[np.nan, 2],
        vc=["v1", ""],
        predicted_s=[100.0, np.nan],
        extra={"x_note": ["line\nbreak", "é"]},
    )


def test_whole_seconds_are_written_as_integers_and_unknown_as_blank(tmp_path: Path) -> None:
    make_trace().write(tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == (
        "job_id,user,vc,name,submit_time,duration,num_gpus,num_cpus,status,predicted_duration,x_note\n"
        'a,,v1,,0,3600,8,,,100,"line\nbreak"\n'
        '"b,""c""",,,,7.25,0.1,0.5,2,,,é\n'
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_trace_is_read_back(tmp_path: Path, suffix: str) -> None:
    trace, path = make_trace(), tmp_path / f"t{suffix}"
    trace.write(path)
    back = Trace.read(path)
    assert back.name == "t"
    assert back.columns().keys() == trace.columns().keys()
    for name, cells in trace.columns().items():
        np.testing.assert_array_equal(back.columns()[name], cells, err_msg=name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_equal_traces_give_equal_bytes(tmp_path: Path, suffix: str) -> None:
    make_trace().write(tmp_path / f"one{suffix}")
    make_trace().write(tmp_path / f"two{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_unwritable_path(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot write this trace: No such file or directory"):
        make_trace().write(tmp_path / "nowhere" / "t.csv")
    (tmp_path / "dir.csv").mkdir()
    with pytest.raises(TraceError, match="cannot write this trace"):
        make_trace().write(tmp_path / "dir.csv")
    assert list(tmp_path.glob("*.part")) == []


def test_invalid_value_in_parquet_is_named_with_its_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {"job_id": [1, 2], "submit_time": [0, 1], "duration": [5.0, -2.0], "num_gpus": [1, 1]}
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"row 2, column 'duration': .*got '-2.0'"):
        Trace.read(tmp_path / "t.parquet")
