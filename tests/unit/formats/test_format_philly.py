"""Philly's `cluster_job_log` and `cluster_machine_list`.

Keys, notes and the example follow msr-fiddle/philly-traces, README.md, commit
29a1b87fa2d9ed80b83c9e3a37f3a88d382b031d; the spelling of an unknown time, and the publisher's definition of
the run time: analysis/Philly Trace Analysis.ipynb, commit 73877391f3127393d4dc130c9c8ca9a86ca89822.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsched.errors import TraceError
from rlsched.workload.formats.frame import Conversion
from tests.support.sim.samples import DAMAGED, SAMPLES, WHOLE, convert, convert_text, noted, skipped

PHILLY, DAMAGED_PHILLY = WHOLE[1], DAMAGED[1]


def attempt(start: Any, end: Any, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{n}", "gpus": [f"gpu{k}" for k in range(count)]} for n, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def job(attempts: Any, submitted: Any = "2017-10-07 01:11:39", **other: Any) -> dict[str, Any]:
    made = {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "user": "ce2f4c"}
    return made | {"attempts": attempts, "submitted_time": submitted} | other


def convert_jobs(tmp_path: Path, *jobs: Any, **options: Any) -> Conversion:
    """Convert a log with one line of these jobs, and with one complete job."""
    whole = job(
        [attempt("2017-12-01 00:00:00", "2017-12-01 00:01:00", 1)], "2017-12-01 00:00:00", jobid="whole"
    )
    return convert_text("philly", tmp_path / "cluster_job_log", json.dumps([*jobs, whole]), **options)


def test_published_example_runs_during_its_attempts() -> None:
    """2 days 5:41:33 from first start to last end, of which 7 seconds lie between the attempts."""
    trace = convert(PHILLY).trace
    assert trace.job_id[0] == "application_1506638472019_10001"
    assert trace.duration_s[0] == 74 + 193_182
    assert trace.extra["x_span_s"][0] == str(74 + 7 + 193_182)
    assert trace.extra["x_attempts"][0] == "2"
    assert trace.extra["queue_s"][0] == 30
    assert trace.num_gpus[0] == 8
    assert (trace.user[0], trace.vc[0], trace.status[0]) == ("c0ffee", "aa11bb", "Pass")


def test_missing_fields_of_the_publisher() -> None:
    """No attempts; no end of the last one; and GPUs that no attempt records."""
    assert skipped(convert(PHILLY).accounts[0]) == {
        "no attempt recorded: it never started": [49],
        "no end of the last attempt: it was still running": [57],
        "no GPUs recorded": [190],
    }


def test_attempt_without_start_is_left_out_of_the_run_time() -> None:
    conversion = convert(PHILLY)
    row = conversion.trace.job_id.tolist().index("application_1506638472019_10006")
    assert conversion.trace.duration_s[row] == 300
    assert np.isnan(conversion.trace.extra["queue_s"][row])
    assert noted(conversion.accounts[0]) == {"an attempt without start or end is not in the run time": [157]}


def test_repeated_hour_at_the_end_of_summer_time() -> None:
    """On 5 November 2017 clocks went from 01:59:59 PDT to 01:00:00 PST."""
    trace = convert(PHILLY).trace
    jobs = trace.job_id.tolist()
    across, within = (jobs.index(f"application_1506638472019_{number}") for number in (10005, 10004))
    assert trace.duration_s[across] == 3 * 3600  # 00:30 PDT to 02:30 PST
    assert trace.duration_s[within] == 20 * 60  # 01:50 PDT to 01:10 PST
    assert convert(PHILLY).origin == "2017-10-07 08:11:39 UTC"


def test_zone_after_a_time_and_another_zone_for_times_without(tmp_path: Path) -> None:
    assert convert(PHILLY).trace.extra["queue_s"][-1] == 30  # 13:00:00 PST to 13:00:30 PST
    conversion = convert_jobs(
        tmp_path, job([attempt("2017-11-05 00:30:00", "2017-11-05 02:30:00", 1)]), timezone="UTC"
    )
    assert conversion.trace.duration_s[0] == 7200


@pytest.mark.parametrize("unknown", [None, "None", ""])
def test_spellings_of_an_unknown_time(unknown: Any, tmp_path: Path) -> None:
    open_end = job([attempt("2017-10-07 01:12:09", unknown, 1)])
    no_start = job([attempt(unknown, "2017-10-07 01:12:09", 1)])
    unsubmitted = job([attempt("2017-10-07 01:12:09", "2017-10-07 01:13:09", 1)], unknown)
    account = convert_jobs(tmp_path, open_end, no_start, unsubmitted).accounts[0]
    assert list(account.skipped) == [
        "no end of the last attempt: it was still running",
        "no attempt with both start and end",
        "no submission time",
    ]


def test_gpus_are_taken_from_the_first_attempt_with_any(tmp_path: Path) -> None:
    times = [(f"2017-10-07 0{hour}:00:00", f"2017-10-07 0{hour}:30:00") for hour in (2, 3, 4)]
    attempts = [attempt(*times[0]), attempt(*times[1], 4, 4), attempt(*times[2], 4)]
    conversion = convert_jobs(tmp_path, job(attempts))
    assert conversion.trace.num_gpus[0] == 8
    assert list(noted(conversion.accounts[0])) == [
        "attempts on different numbers of GPUs, the first attempt counts"
    ]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (["no", "job"], "expected a job with status, vc, jobid, attempts"),
        (job("none"), "expected a job with status"),
        (job(["none"]), "expected an attempt with start_time, end_time and detail, got 'none'"),
        (job([{"start_time": 5, "end_time": None, "detail": []}]), "start_time: expected a time, got '5'"),
        (
            job([{"start_time": None, "end_time": None, "detail": "m1"}]),
            "expected an attempt with start_time",
        ),
        (
            job([attempt("2017-10-07 01:12", "2017-10-07 01:13:23", 1)]),
            "'start_time': expected a time such as",
        ),
        (job([attempt("2017-10-07 02:00:00", "2017-10-07 01:13:23", 1)]), "an end before the start"),
        (job([attempt("2017-10-07 02:00:00", "2017-10-07 03:13:23", 1)], jobid=None), "expected a job id"),
        (
            job([attempt("2017-10-07 02:00:00", "2017-10-07 03:13:23", 1)], user=7),
            "user: expected text, got '7'",
        ),
    ],
)
def test_job_with_other_keys_is_malformed(broken: Any, message: str, tmp_path: Path) -> None:
    account = convert_jobs(tmp_path, broken).accounts[0]
    assert (account.rows, account.kept) == (2, 1)
    ((reason, tally),) = account.skipped.items()
    assert reason.startswith("malformed: ")
    assert message in tally.example
    with pytest.raises(TraceError, match="cluster_job_log: line 1: "):
        convert_jobs(tmp_path, broken, strict=True)


def test_damage_loses_one_job_and_reading_continues() -> None:
    conversion = convert(DAMAGED_PHILLY)
    assert skipped(conversion.accounts[0]) == {
        "malformed: JSON": [2, 166],
        "no attempt recorded: it never started": [49],
        "malformed: submitted_time": [57],
        "malformed: detail": [114],
    }
    assert conversion.trace.job_id.tolist() == ["application_1506638472019_10006"]


def test_log_truncated_between_jobs_is_reported(tmp_path: Path) -> None:
    whole = (SAMPLES / "philly" / "cluster_job_log").read_text()
    account = convert_text("philly", tmp_path / "cluster_job_log", whole.rstrip()[:-1]).accounts[0]
    assert (
        account.skipped["malformed: JSON"].example
        == "expected the list to end with ], got the end of the file"
    )
    assert account.kept == PHILLY.jobs


def test_unclosed_brackets_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="kept none of 1 rows"):
        convert_text("philly", tmp_path / "cluster_job_log", "[" * 200_000)


def test_machines_differ_in_gpus_and_in_their_memory() -> None:
    spec = convert(PHILLY, cluster_name="philly").cluster
    assert spec is not None
    assert [(group.count, group.gpus, group.gpu_type, group.vc) for group in spec.nodes] == [
        (2, 8, "24GB", None),
        (3, 2, "12GB", None),
    ]
