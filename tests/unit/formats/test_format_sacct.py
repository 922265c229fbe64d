"""The output of `sacct --parsable2`.

Fields, the forms of job numbers and times, and what `--duplicates` shows follow sacct(1) of Slurm 22.05.8.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rlsched.errors import TraceError
from rlsched.workload.formats.account import AGAIN
from rlsched.workload.formats.frame import Conversion
from tests.support.sim.samples import WHOLE, convert, convert_text, noted, skipped

SACCT = WHOLE[6]
HEADER = "JobID|JobName|User|State|Submit|Start|End|AllocTRES"
DAY = "2024-03-01T"


def convert_lines(tmp_path: Path, *lines: str, header: str = HEADER, **options: object) -> Conversion:
    text = "\n".join([header, *(line.replace("@", DAY) for line in lines)]) + "\n"
    return convert_text("sacct", tmp_path / "jobs.txt", text, **options)


def test_conversion_of_the_fields() -> None:
    trace = convert(SACCT).trace
    assert trace.job_id.tolist() == ["101", "102_1", "102_2", "103", "104", "104#2"]
    assert trace.job_name[0] == "train resnet"
    assert trace.vc.tolist() == ["gpu", "gpu", "gpu", "gpu", "cpu", "cpu"]
    assert trace.status.tolist() == ["COMPLETED", "FAILED", "TIMEOUT", "COMPLETED", "CANCELLED", "COMPLETED"]
    assert trace.num_gpus.tolist() == [8, 1, 1, 4, 0, 0]
    assert trace.num_cpus.tolist() == [16, 4, 4, 8, 2, 2]
    assert trace.extra["memory_mib"].tolist() == [131072, 16000, 16000, 524288, 4096, 4096]
    assert trace.time_limit_s.tolist()[:3] == [86400, 14400, 14400]
    assert np.isnan(trace.time_limit_s[3])  # UNLIMITED
    assert trace.extra["x_num_nodes"].tolist()[0] == "2"
    assert trace.extra["x_account"].tolist()[1] == "nlp"


def test_typed_gpus_are_not_counted_twice_and_a_requested_type_binds() -> None:
    """AllocTRES of job 101 has gres/gpu:a100=8 next to gres/gpu=8; ReqTRES has only gres/gpu=8."""
    trace = convert(SACCT).trace
    assert trace.gpu_type.tolist() == ["", "v100", "v100", "", "", ""]
    assert trace.extra["x_gpu_type"].tolist() == ["a100", "v100", "v100", "", "", ""]


def test_steps_pending_tasks_and_running_jobs_are_no_jobs_of_the_trace() -> None:
    assert skipped(convert(SACCT).accounts[0]) == {
        "job step": [3, 4, 5],
        "never started": [8, 12],
        "no end recorded: it was still running": [13],
        "attempt that ended in a requeue": [9],
    }


def test_array_is_identified_by_its_number() -> None:
    assert convert(SACCT).trace.extra["array_id"].tolist() == ["", "102", "102", "", "", ""]


def test_requeued_job_was_submitted_once_and_runs_as_long_as_its_last_attempt() -> None:
    """From the man page, Submit: it is reset when a job is requeued; --duplicates shows the original one."""
    trace = convert(SACCT).trace
    row = trace.job_id.tolist().index("103")
    assert trace.submit_s[row] == 3600
    assert trace.extra["queue_s"][row] == 60
    assert trace.duration_s[row] == 25 * 3600
    assert trace.extra["x_requeues"][row] == "1"
    assert trace.extra["x_lost_s"][row] == "1800"


def test_reused_number_is_another_job() -> None:
    """From the man page, --duplicates: job ids may be reset; the submission time then distinguishes jobs."""
    conversion = convert(SACCT)
    assert noted(conversion.accounts[0])["a job number that was given again: #2, #3, ... added to it"] == [14]
    assert conversion.trace.user.tolist()[-2:] == ["eve", "zoe"]


def test_attempts_of_a_job_may_be_in_any_order(tmp_path: Path) -> None:
    lines = (
        "7|a|ann|COMPLETED|@12:00:00|@12:00:30|@12:30:00|gres/gpu=1",
        "7|a|ann|NODE_FAIL|@11:00:00|@11:00:10|@12:00:00|gres/gpu=1",
        "7|a|ann|REQUEUED|@10:00:00|@10:00:20|@11:00:00|gres/gpu=1",
        "7|b|bob|COMPLETED|@13:00:00|@13:00:00|@13:01:00|gres/gpu=1",
    )
    trace = convert_lines(tmp_path, *lines).trace
    assert trace.job_id.tolist() == ["7", "7#2"]
    assert trace.duration_s.tolist() == [1770, 60]
    assert trace.extra["queue_s"].tolist() == [20, 0]
    assert trace.extra["x_lost_s"].tolist() == ["7170", ""]


@pytest.mark.parametrize(
    "open_line",
    [
        "7|a|ann|RUNNING|@11:00:00|@11:00:10|Unknown|gres/gpu=1",
        "7|a|ann|PENDING|@11:00:00|Unknown|Unknown|",
        None,
    ],
)
def test_requeued_job_without_an_end_is_skipped(open_line: str | None, tmp_path: Path) -> None:
    """Seen with a real Slurm 22.05.8: between the attempts, sacct lists only the requeued one."""
    lines = [
        "8|b|bob|COMPLETED|@13:00:00|@13:00:00|@13:01:00|gres/gpu=1",
        "7|a|ann|REQUEUED|@10:00:00|@10:00:20|@11:00:00|gres/gpu=1",
    ]
    conversion = convert_lines(tmp_path, *lines, *([open_line] if open_line else []))
    assert conversion.trace.job_id.tolist() == ["8"]
    assert skipped(conversion.accounts[0])["requeued, and not ended since"] == [3]


def test_node_failure_ends_a_job_unless_it_is_requeued(tmp_path: Path) -> None:
    failed = "7|a|ann|NODE_FAIL|@10:00:00|@10:00:20|@11:00:00|gres/gpu=1"
    other = "8|b|bob|COMPLETED|@13:00:00|@13:00:00|@13:01:00|gres/gpu=1"
    assert convert_lines(tmp_path, failed, other).trace.status.tolist() == ["NODE_FAIL", "COMPLETED"]
    going_on = "7|a|ann|RUNNING|@11:00:00|@12:00:00|Unknown|gres/gpu=1"
    assert convert_lines(tmp_path, failed, other, going_on).trace.status.tolist() == ["COMPLETED"]


def test_job_cancelled_while_waiting_may_have_equal_times(tmp_path: Path) -> None:
    """Seen with a real Slurm 22.05.8: a held job gets the time of its cancellation as Start and End."""
    header = "JobID|State|Submit|Start|End|ElapsedRaw|NodeList|ReqTRES|AllocTRES"
    held = "9|CANCELLED by 0|@09:00:00|@09:10:00|@09:10:00|0|None assigned|cpu=1,gres/gpu=1,mem=4000M,node=1|"
    ran = "10|CANCELLED by 0|@09:00:00|@09:10:00|@09:10:00|0|n1|cpu=1,gres/gpu=1,mem=4G|cpu=1,gres/gpu=1"
    conversion = convert_lines(tmp_path, held, ran, header=header)
    assert conversion.trace.job_id.tolist() == ["10"]
    assert skipped(conversion.accounts[0]) == {"never started": [2]}
    assert conversion.trace.extra["memory_mib"].tolist() == [4096]


def test_suspended_time_is_no_run_time() -> None:
    conversion = convert(SACCT)
    assert conversion.trace.duration_s[-1] == 300
    remark = "Elapsed, which is used, is not End - Start: suspended, or clocks were changed"
    assert noted(conversion.accounts[0])[remark] == [14]


def test_zone_makes_nights_with_a_change_of_clocks_as_long_as_they_were(tmp_path: Path) -> None:
    line = "1|a|ann|COMPLETED|2024-03-30T23:00:00|2024-03-31T00:00:00|2024-03-31T06:00:00|gres/gpu=1"
    assert convert_lines(tmp_path, line).trace.duration_s.tolist() == [21600]
    there = convert_lines(tmp_path, line, timezone="Europe/Berlin")
    assert there.trace.duration_s.tolist() == [18000]
    assert there.origin == "2024-03-30 22:00:00 UTC"
    assert there.trace.origin == datetime(2024, 3, 30, 23, tzinfo=ZoneInfo("Europe/Berlin"))
    assert convert_lines(tmp_path, line).trace.origin == datetime(2024, 3, 30, 23)


def test_times_as_seconds_since_1970_and_limits_in_minutes(tmp_path: Path) -> None:
    header = "JobID|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|ReqTRES|NCPUS|"
    conversion = convert_lines(
        tmp_path, "5|COMPLETED|1709283600|1709283610|1709283700|90|30|gres/gpu=2|12|", header=header
    )
    trace = conversion.trace
    assert trace.duration_s.tolist() == [90]
    assert trace.time_limit_s.tolist() == [1800]
    assert (trace.num_gpus.tolist(), trace.num_cpus.tolist()) == ([2], [12])
    assert conversion.origin == "2024-03-01 09:00:00 UTC"
    assert trace.origin == datetime(2024, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=1,cpu=1,gres/gpu:a100=2,gres/gpu:v100=1,node=1", 3),
        ("billing=1,cpu=1,gres/gpu=4,gres/gpu:a100=4", 4),
        ("cpu=1,gres/gpumem=40G,gres/shard=2,mem=1G", 0),
    ],
)
def test_gpus_in_trackable_resources(tres: str, gpus: int, tmp_path: Path) -> None:
    line = f"1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|{tres}"
    assert convert_lines(tmp_path, line).trace.num_gpus.tolist() == [gpus]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1", "JobID: expected a job number, got a blank"),
        ("1|a|ann|COMPLETED|Unknown|@09:00:00|@09:01:00|cpu=1", "Submit: expected a time, got a blank"),
        ("1|a|ann|COMPLETED|@09:00|@09:00:00|@09:01:00|cpu=1", "'Submit': expected a time such as"),
        (
            "1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1,mem=lots",
            "mem: expected an amount such as 64G",
        ),
        (
            "1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|gres/gpu=²",
            "expected a whole number of GPUs or CPUs",
        ),
        (
            f"1|{'a' * 1001}|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1",
            "expected text of at most 1000",
        ),
    ],
)
def test_malformed_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    good = "2|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1"
    account = convert_lines(tmp_path, line, good).accounts[0]
    ((reason, tally),) = account.skipped.items()
    assert reason.startswith("malformed: ")
    assert tally.lines == [2]
    assert tally.example.startswith(message)
    with pytest.raises(TraceError, match="line 2: "):
        convert_lines(tmp_path, line, good, strict=True)


@pytest.mark.parametrize("name", ["a|b", "|", "||a", "lr|1e-3", "a b| c", "tra.x|2"])
def test_bars_in_a_job_name_are_part_of_it(name: str, tmp_path: Path) -> None:
    line = f"1|{name}|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1,gres/gpu=2"
    trace = convert_lines(tmp_path, line, "1.batch|a|b||COMPLETED|@09:00:00|@09:00:00|@09:01:00|").trace
    assert (trace.job_name.tolist(), trace.user.tolist(), trace.num_gpus.tolist()) == ([name], ["ann"], [2])


ONE = "1|train|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1"


@pytest.mark.parametrize("job", ["102", "102_7", "102_[1-9]", "102.batch", "102_7.0", "9+1", "9+1.extern"])
def test_truncated_line_joined_with_the_next_is_malformed(job: str, tmp_path: Path) -> None:
    """It is never read as a job with a long name."""
    after = f"{job}|other|bob|COMPLETED|@10:00:00|@10:00:00|@10:01:00|cpu=1,gres/gpu=4"
    good = "2|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1"
    lines = [ONE[:cut] + after for cut in range(len("1|"), len(ONE))]
    conversion = convert_lines(tmp_path, *lines, good)
    assert conversion.trace.job_id.tolist() == ["2"]
    skipped = {reason: tally.count for reason, tally in conversion.accounts[0].skipped.items()}
    assert skipped == {"malformed: number of fields": len(lines)}


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (f"{HEADER}|Comment", "1|a|b|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1|x"),
        (f"{HEADER}|Constraints", "1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1|a100|h100"),
        (
            HEADER.replace("JobName|User", "User|JobName"),
            "1|ann|a|b|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1",
        ),
        (HEADER.replace("JobName|", ""), "1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1"),
        (HEADER, "1|run1|b|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|cpu=1"),
    ],
)
def test_ambiguous_bars_are_not_guessed(header: str, line: str, tmp_path: Path) -> None:
    good = "|".join(
        "2" if name == "JobID" else "@09:00:00" if name in ("Submit", "Start", "End") else "cpu=1"
        for name in header.split("|")
    )
    conversion = convert_lines(tmp_path, line, good, header=header)
    assert conversion.trace.job_id.tolist() == ["2"]
    assert list(conversion.accounts[0].skipped) == ["malformed: number of fields"]


def test_parts_of_a_heterogeneous_job_are_jobs(tmp_path: Path) -> None:
    lines = [f"9+{part}|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|gres/gpu={part + 1}" for part in (0, 1)]
    trace = convert_lines(tmp_path, *lines).trace
    assert trace.job_id.tolist() == ["9+0", "9+1"]
    assert trace.num_gpus.tolist() == [1, 2]


FULL = (
    "JobID|JobName|User|Account|Partition|QOS|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|"
    "NodeList|AllocTRES"
)


def line_of(
    job: int, name: str = "a", user: str = "ann", state: str = "COMPLETED", run_s: int = 60, limit: str = "30"
) -> str:
    """A line of the columns `FULL`."""
    end = f"@09:{10 + run_s // 60:02}:{run_s % 60:02}"
    return (
        f"{job}|{name}|{user}|lab|gpu|normal|{state}|@09:00:00|@09:10:00|{end}|{run_s}|{limit}|n1|gres/gpu=1"
    )


def test_line_in_two_overlapping_exports_is_one_job(tmp_path: Path) -> None:
    month = [FULL, line_of(1), line_of(2)]
    conversion = convert_lines(tmp_path, line_of(1), line_of(2), line_of(2), line_of(3), header=FULL)
    assert conversion.trace.job_id.tolist() == ["1", "2", "3"]
    assert skipped(conversion.accounts[0]) == {AGAIN: [4]}
    (tmp_path / "january.txt").write_text("\n".join(month).replace("@", DAY))
    there = convert_lines(tmp_path, line_of(2), line_of(3), header=FULL, more=(tmp_path / "january.txt",))
    assert there.trace.job_id.tolist() == ["2", "3", "1"]
    assert [skipped(account) for account in there.accounts] == [{}, {AGAIN: [3]}]
    assert (there.exports, sum(account.kept for account in there.accounts)) == (2, 3)


def test_exports_in_one_file_have_separate_header_lines(tmp_path: Path) -> None:
    """As written by `cat january.txt february.txt`, the second with its columns in another order."""
    turned = "AllocTRES|JobID|JobName|User|State|Submit|Start|End"
    first = "1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00|gres/gpu=1"
    again = "gres/gpu=1|1|a|ann|COMPLETED|@09:00:00|@09:00:00|@09:01:00"
    other = "gres/gpu=2|2|b|bob|COMPLETED|@09:00:00|@09:00:00|@09:01:00"
    conversion = convert_lines(tmp_path, first, HEADER, first, turned, again, other)
    assert conversion.trace.user.tolist() == ["ann", "bob"]
    assert conversion.trace.num_gpus.tolist() == [1, 2]
    assert skipped(conversion.accounts[0]) == {AGAIN: [4, 6]}
    assert conversion.accounts[0].rows == 4


def test_different_lines_of_one_number_are_different_jobs(tmp_path: Path) -> None:
    trace = convert_lines(tmp_path, line_of(7), line_of(7, run_s=61), header=FULL).trace
    assert trace.job_id.tolist() == ["7", "7#2"]


@pytest.mark.parametrize("name", ["nan", "None", "null", "NA", "Unknown", "N/A", 'say "hi"', '"', " a b "])
def test_text_of_users_is_kept_unchanged(name: str, tmp_path: Path) -> None:
    """sacct --parsable2 neither quotes nor escapes text."""
    trace = convert_lines(tmp_path, line_of(1, name=name, user=name), header=FULL).trace
    assert (trace.job_name[0], trace.user[0]) == (name, name)


def test_sacct_s_texts_for_no_value_are_blank(tmp_path: Path) -> None:
    line = line_of(1).replace("|normal|", "|Unknown|")
    never = line_of(2, run_s=0).replace("|n1|gres/gpu=1", "|None assigned|")
    conversion = convert_lines(tmp_path, line, never, header=FULL)
    assert "x_qos" not in conversion.trace.extra
    assert skipped(conversion.accounts[0]) == {"never started": [3]}


def test_job_without_recorded_resources_is_not_a_job_without_gpus(tmp_path: Path) -> None:
    blank = line_of(1).replace("gres/gpu=1", "")
    account = convert_lines(tmp_path, blank, line_of(2), header=FULL).accounts[0]
    assert skipped(account) == {"no resources recorded: AllocTRES and ReqTRES are blank": [2]}


@pytest.mark.parametrize(
    ("state", "run_s", "limit", "limit_s", "asked", "remark"),
    [
        ("COMPLETED", 60, "1", 60, "", None),
        ("COMPLETED", 90, "1", None, "60", "ran longer than its time limit"),
        ("TIMEOUT", 75, "1", 60, "", "ended by its time limit some seconds late"),
        ("TIMEOUT", 240, "1", None, "60", "ran longer than its time limit"),
        ("COMPLETED", 60, "0", None, "", None),
        ("COMPLETED", 60, "UNLIMITED", None, "", None),
        ("COMPLETED", 60, "Partition_Limit", None, "", None),
    ],
)
def test_exceeded_limit_does_not_cut_a_replay(
    state: str, run_s: int, limit: str, limit_s: float | None, asked: str, remark: str | None, tmp_path: Path
) -> None:
    conversion = convert_lines(tmp_path, line_of(1, state=state, run_s=run_s, limit=limit), header=FULL)
    trace = conversion.trace
    assert trace.duration_s.tolist() == [run_s]
    np.testing.assert_array_equal(trace.time_limit_s, [np.nan if limit_s is None else limit_s])
    assert trace.extra.get("x_time_limit_s", np.array([""])).tolist() == [asked]
    remarks = list(noted(conversion.accounts[0]))
    assert len(remarks) == (remark is not None)
    assert all(one.startswith(remark or "") for one in remarks)
