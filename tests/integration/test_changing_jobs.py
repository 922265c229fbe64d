"""Hundreds of jobs from a file, updates of submitted jobs, and single tasks, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.client.submitting import JobRefusedError, as_submit
from rlsched.wire.messages import DependsOn
from tests.support.online.cluster import until
from tests.support.online.shell import Place

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("changing"))
    yield place
    place.stop()


def table(place: Place, text: str) -> Path:
    path = place.folder / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_job_per_row(place: Place) -> None:
    table(
        place,
        "name,gpus,time,hold,env,command\n"
        "one,1,30,,A=1,sh -c 'echo $A $SEED > one.txt'\n\n"
        'two,2,1h,yes,,"true with a ""word"""\n'
        "script,,,,,train.sh 3\n",
    )
    done = place.type("SEED=7 rlsched submit --from jobs.csv --priority low --json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["jobs"]
    assert [row["line"] for row in rows] == [2, 4, 5]
    one, two, script = (place.client.job(row["job"]) for row in rows)
    assert [job.priority for job in (one, two, script)] == ["low"] * 3
    assert (one.name, two.name, script.name) == ("one", "two", "script")
    assert (two.num_gpus, two.state) == (2, "queued")
    assert place.client.wait(one.job).exit_code == 0
    assert (place.folder / "one.txt").read_text() == "1 7\n"
    assert place.client.wait(script.job).exit_code == 0
    place.clear()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,gpu,command\nx,1,true\n", "jobs.csv, line 1: no option of `rlsched submit` is called 'gpu'"),
        ("name,gpus\nx,1\n", "jobs.csv, line 1: expected column names, one of them command or wrap"),
        (
            "name,gpus,command\nx,1,true\ny,0,true\n",
            "jobs.csv, line 3: --gpus: expected [TYPE:]COUNT",
        ),
        ("name,gpus,command\nx,1,true\ny,2\n", "jobs.csv, line 3: expected 3 values"),
        ("hold,command\nmaybe,true\n", "jobs.csv, line 2: hold: expected yes or no, got 'maybe'"),
        ("time,command\n,true\nnoon,true\n", "jobs.csv, line 3: --time 'noon': expected minutes"),
        ("gpus,command\n1,true\n99,true\n", "jobs.csv, line 3: 99 GPUs"),
        ("dependency,command\n,true\nafterok:9999,true\n", "jobs.csv, line 3: there is no job 9999"),
        ("name,command\n", "expected a line of column names, then one job per line"),
    ],
)
def test_faulty_row_is_named_and_no_job_is_queued(place: Place, text: str, said: str) -> None:
    before = len(place.client.jobs(finished=True))
    table(place, text)
    done = place.type("rlsched submit --from jobs.csv")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(place.client.jobs(finished=True)) == before


def test_six_hundred_jobs_are_two_messages_and_are_queued_once(place: Place) -> None:
    jobs = [as_submit(["true"], name=f"many-{k}", hold=True, env={"BIG": "x" * 500}) for k in range(600)]
    told: list[int] = []
    first = place.client.submit_many(jobs, seen=told.append)
    assert told == [500, 600]
    assert first == list(range(first[0], first[0] + 600))
    assert place.client.submit_many(jobs) == first, "sent again, as after a lost connection"
    with Client(place.address, home=place.home) as other:
        assert other.submit_many(jobs) == first
    with pytest.raises(JobRefusedError, match="job 551: there is no job") as refused:
        place.client.submit_many(
            [as_submit(["true"], hold=True) for _ in range(550)]
            + [as_submit(["true"], depends_on=[DependsOn("afterok", 10**6)])]
        )
    assert refused.value.place == 550
    assert len(place.client.jobs()) == 600, "none of the earlier jobs"
    done = place.type("rlsched cancel --name 'many-*'")
    assert done.stdout.count("cancelled") == 600
    assert place.client.jobs() == []


def test_jobs_are_changed_with_words_of_rlsched_and_slurm(place: Place) -> None:
    job = place.client.submit(["true"], name="waits", hold=True)
    done = place.type(f"rlsched update {job} --name better --time 2h --priority low --begin now+1h")
    assert (done.returncode, done.stdout) == (0, f"job {job}: updated\n")
    assert (place.client.job(job).name, place.client.job(job).priority) == ("better", "low")
    done = place.type(f"rlsched update JobId={job} JobName=best StartTime=now TimeLimit=UNLIMITED")
    assert done.returncode == 0, done.stderr
    assert place.client.job(job).name == "best"
    assert place.client.job(job).reason.startswith("Held")
    done = place.type(f"rlsched update JobId={job} NumNodes=3")
    assert done.returncode == 2
    assert "NumNodes: cannot be changed" in done.stderr
    assert "expected something to change" in place.type(f"rlsched update {job}").stderr
    place.clear()


def test_future_tasks_are_cancelled_and_held(place: Place) -> None:
    array = place.client.submit(["sleep", "600"], name="many", array="0-19%1")
    until(lambda: len(place.client.jobs()) == 2, "its first task runs")
    done = place.type(f"rlsched cancel {array}_12 '{array}_[15-19]'")
    assert done.stdout == f"job {array}_12: cancelled\njob {array}_[15-19]: cancelled\n"
    assert place.type(f"rlsched hold '{array}_[1-3]'").returncode == 0
    info = place.client.job(array)
    assert info.tasks == "4-11,13-14%1"
    assert info.reason == "13 tasks wait, 3 of them held, 1 run, 6 cancelled"
    said = place.type(f"rlsched cancel {array}_25").stderr
    assert said == f"error: array {array} has no task 25: it has 0-19\n"
    assert place.type("rlsched cancel --all").returncode == 0
    until(lambda: not place.client.jobs(), "all have ended")
    assert "no such jobs wait or run" in place.type("rlsched hold --all").stderr
