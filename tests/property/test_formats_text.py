"""Every format keeps text unchanged, counts a repeated line once, and does not turn missing numbers into
zero.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlsched.errors import TraceError
from rlsched.workload.formats.account import AGAIN
from rlsched.workload.formats.frame import Conversion, Request
from rlsched.workload.formats.registry import convert_original
from rlsched.workload.trace import Trace

Row = dict[str, str]


class Shape(NamedTuple):
    """A format as a test writes it.

    Attributes:
        name: The format.
        file: Its main file.
        row: A job whose numbers are all known and above 0; `{k}` is the number of the job.
        text: Column of the trace by column of the row, where people or sites choose the text.
        numbers: Columns of numbers and times.
        write: Rows to the text of the main file.
        other_files: Rows to the text of other files, by name.
    """

    name: str
    file: str
    row: Row
    text: dict[str, str]
    numbers: tuple[str, ...]
    write: Callable[[list[Row]], str]
    other_files: dict[str, Callable[[list[Row]], str]]


def with_header(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def columns(*names: str) -> Callable[[list[Row]], str]:
    """A table without a header line, with these keys."""

    def write(rows: list[Row]) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([[row[name] for name in names] for row in rows])
        return out.getvalue()

    return write


def bars(rows: list[Row]) -> str:
    """Output of `sacct --parsable2`, which escapes nothing."""
    return "".join("|".join(line) + "\n" for line in [list(rows[0]), *(list(row.values()) for row in rows)])


def philly(rows: list[Row]) -> str:
    jobs = []
    for row in rows:
        attempt = {"start_time": row["start_time"] or None, "end_time": row["end_time"] or None}
        attempt["detail"] = [{"ip": "m1", "gpus": ["gpu0"]}] if row["gpus"] else []  # type: ignore[assignment]
        kept = {name: row[name] for name in ("status", "vc", "jobid", "user")}
        jobs.append(kept | {"attempts": [attempt], "submitted_time": row["submitted_time"] or None})
    return json.dumps(jobs, indent=1)


def words(rows: list[Row]) -> str:
    return "".join(" ".join(value or "-1" for value in row.values()) + "\n" for row in rows)


def text_row(**values: str) -> Row:
    return values


TIMES = ("submit_time", "start_time", "end_time")
SHAPES = (
    Shape(
        "helios",
        "cluster_log.csv",
        text_row(
            job_id="{k}", user="u", vc="v", jobname="n", gpu_num="2", cpu_num="8", node_num="1",
            state="COMPLETED", submit_time="2020-06-09 08:00:10", start_time="2020-06-09 08:00:20",
            end_time="2020-06-09 09:00:10", duration="3590", queue="10",
        ),
        {"user": "user", "vc": "vc", "jobname": "name"},
        ("gpu_num", "cpu_num", "node_num", "duration", "queue", *TIMES),
        with_header,
        {},
    ),
    Shape(
        "acme",
        "trace_kalos.csv",
        text_row(
            job_id="{k}", user="u", node_num="2", gpu_num="16", cpu_num="128", mem_per_pod_GB="100",
            type="SFT", state="FAILED", submit_time="2023-05-17 11:00:00+00:00",
            start_time="2023-05-17 11:00:10+00:00", end_time="2023-05-17 11:01:16+00:00",
        ),
        {"user": "user"},
        ("node_num", "gpu_num", "cpu_num", "mem_per_pod_GB", *TIMES),
        with_header,
        {},
    ),
    Shape(
        "openb",
        "openb_pod_list_a.csv",
        text_row(
            name="{k}", cpu_milli="6000", memory_mib="12288", num_gpu="1", gpu_milli="460", gpu_spec="",
            qos="LS", pod_phase="Running", creation_time="100", deletion_time="900", scheduled_time="200",
        ),
        {},
        (
            *("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
            *("creation_time", "deletion_time", "scheduled_time"),
        ),
        with_header,
        {},
    ),
    Shape(
        "pai",
        "pai_job_table.csv",
        text_row(
            job_name="{k}", inst_id="i{k}", user="u", status="Terminated", start_time="100", end_time="900",
            task_name="w", inst_num="2", plan_cpu="600", plan_mem="30", plan_gpu="50", gpu_type="T4",
            group="g", gpu_type_spec="", workload="bert",
        ),
        {"user": "user", "group": "name"},
        ("inst_num", "plan_cpu", "plan_mem", "start_time", "end_time"),
        columns("job_name", "inst_id", "user", "status", "start_time", "end_time"),
        {
            "pai_task_table.csv": columns(
                "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu",
                "plan_mem", "plan_gpu", "gpu_type",
            ),
            "pai_group_tag_table.csv": columns("inst_id", "user", "gpu_type_spec", "group", "workload"),
        },
    ),
    Shape(
        "philly",
        "cluster_job_log",
        text_row(
            jobid="{k}", user="u", vc="v", status="Pass", submitted_time="2017-10-07 01:11:39",
            start_time="2017-10-07 01:12:09", end_time="2017-10-07 02:12:09", gpus="1",
        ),
        {"user": "user", "vc": "vc"},
        ("submitted_time", "start_time", "end_time", "gpus"),
        philly,
        {},
    ),
    Shape(
        "sacct",
        "jobs.txt",
        text_row(
            JobID="{k}", JobName="n", User="u", Account="a", Partition="p", QOS="q", State="COMPLETED",
            Submit="2024-03-01T09:00:00", Start="2024-03-01T09:00:10", End="2024-03-01T10:00:10",
            ElapsedRaw="3600", TimelimitRaw="90", NNodes="1", NodeList="n1",
            ReqTRES="cpu=8,gres/gpu=2,mem=64G", AllocTRES="cpu=8,gres/gpu=2,mem=64G",
        ),
        {"JobName": "name", "User": "user", "Account": "x_account", "Partition": "vc"},
        ("Submit", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "ReqTRES", "AllocTRES"),
        bars,
        {},
    ),
    Shape(
        "swf",
        "log.swf",
        dict(
            zip(
                (
                    "job", "submit", "wait", "run", "allocated", "cpu", "used", "requested", "limit",
                    "memory", "status", "user", "group", "executable", "queue", "partition",
                    "preceding", "think",
                ),
                ("{k}", "10", "5", "60", "4", "50", "100", "4", "90", "2048", "1", "3", "3", "3", "3", "3",
                 "-1", "7"),
                strict=True,
            )
        ),
        {},
        (
            *("submit", "wait", "run", "allocated", "requested", "limit", "memory", "user", "group", "queue"),
            *("partition", "think", "executable"),
        ),
        words,
        {},
    ),
)  # fmt: skip
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
NAMES = ("nan", "NaN", "none", "None", "null", "NULL", "NA", "N/A", "n/a", "Unknown", "NaT", "-1", "0")
DIGIT = re.compile(r"\d")
SIGNS = st.characters(codec="utf-8").filter(str.isprintable)
TEXT = st.one_of(st.sampled_from(NAMES), st.text(SIGNS, min_size=1, max_size=12)).filter(str.strip)


def jobs(shape: Shape, *changes: Row) -> list[Row]:
    return [
        {name: value.replace("{k}", str(k)) for name, value in shape.row.items()} | change
        for k, change in enumerate(changes, start=1)
    ]


def convert(shape: Shape, rows: list[Row], folder: str, **options: object) -> Conversion:
    for name, write in (shape.other_files | {shape.file: shape.write}).items():
        (Path(folder) / name).write_text(write(rows), encoding="utf-8", newline="")
    return convert_original(shape.name, Request(Path(folder) / shape.file, **options))  # type: ignore[arg-type]


@every_shape
@settings(max_examples=30, deadline=None)
@given(data=st.data(), suffix=st.sampled_from([".csv", ".csv.gz"]))
def test_any_text_survives_conversion_and_reading_back(
    shape: Shape, data: st.DataObject, suffix: str
) -> None:
    row = st.fixed_dictionaries(dict.fromkeys(shape.text, TEXT))
    if shape.name == "sacct":  # sacct escapes no bar: a name may contain one, not after a digit
        plain = TEXT.filter(lambda one: "|" not in one)
        barred = st.tuples(plain.filter(lambda one: not DIGIT.search(one)), TEXT).map("|".join)
        names = st.one_of(plain, barred.filter(lambda one: not DIGIT.search(one.rpartition("|")[0])))
        row = st.fixed_dictionaries(dict.fromkeys(shape.text, plain) | {"JobName": names})
    changes = data.draw(st.lists(row, min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        conversion = convert(shape, jobs(shape, *changes), folder, strict=True)
        conversion.trace.write(Path(folder) / f"t{suffix}")
        back = Trace.read(Path(folder) / f"t{suffix}").columns()
    assert back.keys() == conversion.trace.columns().keys()
    for source, header in shape.text.items():
        assert back[header].tolist() == [change[source] for change in changes], header


@every_shape
@settings(max_examples=15, deadline=None)
@given(copies=st.lists(st.integers(1, 3), min_size=1, max_size=5), data=st.data())
def test_repeated_line_counts_once(shape: Shape, copies: list[int], data: st.DataObject) -> None:
    once = jobs(shape, *({} for _ in copies))
    lines = data.draw(st.permutations([row for row, n in zip(once, copies, strict=True) for _ in range(n)]))
    with tempfile.TemporaryDirectory() as folder:
        alone = convert(shape, list({tuple(row.values()): row for row in lines}.values()), folder)
        there = convert(shape, lines, folder)
    assert len(there.trace) == len(copies)
    assert there.trace.columns().keys() == alone.trace.columns().keys()
    for header, cells in alone.trace.columns().items():
        np.testing.assert_array_equal(there.trace.columns()[header], cells, err_msg=header)
    dropped = sum(copies) - len(copies)
    assert {reason: tally.count for reason, tally in there.accounts[0].skipped.items()} == (
        {AGAIN: dropped} if dropped else {}
    )


@every_shape
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_missing_number_is_blank_or_named_and_never_zero(shape: Shape, data: st.DataObject) -> None:
    missing = data.draw(st.sets(st.sampled_from(shape.numbers), min_size=1, max_size=3))
    rows = jobs(shape, {}, dict.fromkeys(missing, ""))
    with tempfile.TemporaryDirectory() as folder:
        conversion = convert(shape, rows, folder)
    trace = conversion.trace
    first = conversion.accounts[0]
    if len(trace) == 1:
        assert [tally.count for tally in first.skipped.values()] == [1]
        return
    row = trace.job_id.tolist().index("2")
    for header, cells in trace.columns().items():
        assert str(cells[row]) not in ("0", "0.0") or cells[row] == cells[1 - row], header


@example("\ud800")
@settings(max_examples=10, deadline=None)
@given(
    st.text(
        st.characters(min_codepoint=0xD800, max_codepoint=0xDBFF, categories=["Cs"]), min_size=1, max_size=3
    )
)
def test_half_a_character_of_json_is_refused_with_its_line(text: str) -> None:
    shape = next(one for one in SHAPES if one.name == "philly")
    with tempfile.TemporaryDirectory() as folder:
        conversion = convert(shape, jobs(shape, {}, {"user": text}), folder)
        assert conversion.trace.job_id.tolist() == ["1"]
        assert list(conversion.accounts[0].skipped) == ["malformed: text"]
        with pytest.raises(TraceError, match="expected text of at most 1000 characters"):
            convert(shape, jobs(shape, {"user": text}), folder, strict=True)
