"""Orders about jobs on the command line: jobs, tasks, and Slurm's words."""

from __future__ import annotations

import io
import time
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from rlsched.cli.shared.job_number import JobName, TasksParam
from rlsched.cli.shared.job_options import changes_asked, when_s
from rlsched.cli.shared.options import SILENT_S, BrokerAt, _WaitingLine
from rlsched.cli.shared.selecting import of_numbers, states_of
from rlsched.cli.users import job_orders
from rlsched.cli.users.batch_script import BatchCommand
from rlsched.cli.users.job_orders import update
from rlsched.cli.users.many_jobs import _rows
from rlsched.cli.users.submit import submit
from rlsched.client.client import Client
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import JobInfo, Tasks

NOTHING = dict.fromkeys(
    (
        "name",
        "priority",
        "time",
        "time_limit",
        "begin",
        "dependency",
        "lost_after",
        "array_limit",
        "gpu_type",
        "prefer",
        "share",
        "grace",
        "slack",
    )
)


def parsed(*words: str) -> dict[str, object]:
    return update.make_context("update", list(words)).params


def test_names_of_jobs_and_tasks() -> None:
    read = TasksParam().convert
    assert read("7", None, None) == JobName(7)
    assert read("7_12", None, None).ranges() == [Tasks(12, 12)]
    some = read("7_[3,5-9:2]", None, None)
    assert (some.ranges(), str(some)) == ([Tasks(3, 3), Tasks(5, 9, 2)], "7_[3,5-9:2]")
    for odd in ("7_[9-5]", "7_[]", "7_a", "x", "7_[1,,2]"):
        with pytest.raises(click.BadParameter, match="expected"):
            read(odd, None, None)


def test_slurms_words_are_options() -> None:
    found = parsed("JobId=7,8", "TimeLimit=1:30:00", "jobname=x", "ArrayTaskThrottle=4", "Dependency=")
    assert found["jobs"] == (JobName(7), JobName(8))
    assert (found["time"], found["name"], found["array_limit"]) == ("1:30:00", "x", 4)
    assert found["dependency"] == ""
    assert parsed("7,9", "JobId=3_[5-9]")["jobs"] == (JobName(7), JobName(9), JobName(3, tasks="5-9"))
    with pytest.raises(click.UsageError, match=r"TimeLimits: .* did you mean timelimit"):
        parsed("7", "TimeLimits=3")


def test_only_the_given_fields_change() -> None:
    assert changes_asked({**NOTHING, "time": "UNLIMITED", "begin": "now"}, 50.0) == {
        "time_limit_s": float("inf"),
        "begin_s": 50.0,
    }
    assert changes_asked({**NOTHING, "dependency": ""}, 0.0) == {"depends_on": [], "singleton": False}
    assert changes_asked({**NOTHING, "array_limit": 0}, 0.0) == {"array_limit": 0}
    assert changes_asked({**NOTHING, "grace": "5m"}, 0.0) == {"grace_s": 300.0}
    with pytest.raises(InputError, match="--grace 'long': expected seconds"):
        changes_asked({**NOTHING, "grace": "long"}, 0.0)
    assert changes_asked({**NOTHING, "slack": "1h"}, 0.0) == {"slack_s": 3_600.0}
    assert changes_asked({**NOTHING, "slack": "0"}, 0.0) == {"slack_s": 0.0}
    assert changes_asked({**NOTHING, "share": "no"}, 0.0) == {"share": "no"}
    with pytest.raises(InputError, match="expected something to change"):
        changes_asked(NOTHING, 0.0)


def test_times_of_day() -> None:
    now_s = time.mktime((2026, 11, 2, 11, 0, 0, 0, 0, -1))
    assert when_s("--begin", "noon", now_s) == now_s + 3_600.0
    assert when_s("--begin", "midnight", now_s) == now_s + 13 * 3_600.0
    assert when_s("--begin", "tomorrow", now_s) == now_s + 86_400.0


def info(job: int, array: int = 0, task: int = 0) -> JobInfo:
    return JobInfo(
        job=job, name="", user="", vc="", state="queued", num_gpus=1, attempt=0, submit_s=0.0,
        predicted_s=None, start_s=None, end_s=None, exit_code=None, nodes=[], gpus=[], decided_by="",
        reason="", array=array, task=task,
    )  # fmt: skip


def test_jobs_by_number_with_their_tasks() -> None:
    jobs = [info(1), info(2), info(3, 2, 0), info(4, 2, 1)]
    assert [one.job for one in of_numbers(jobs, "1,2_1")] == [1, 4]
    assert [one.job for one in of_numbers(jobs, "2")] == [2, 3, 4]
    assert of_numbers(jobs, None) == jobs
    with pytest.raises(InputError, match="expected job numbers, separated by commas"):
        of_numbers(jobs, "1,x")
    assert states_of("all") is None


@click.command(cls=BatchCommand, context_settings={"allow_interspersed_args": False})
@click.option("-G", "--gpus", type=int)
@click.option("--hold", is_flag=True)
@click.option("--name", default="")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def verb(**_: object) -> None:
    """A verb that runs a given function."""


def test_options_without_effect_are_named_and_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--qos=x", "-G", "2", "-q", "long", "--requeue", "--hold", "python", "-o", "--mem"]
    params = verb.make_context("verb", words).params
    assert (params["gpus"], params["hold"], params["command"]) == (2, True, ("python", "-o", "--mem"))
    assert capsys.readouterr().err == (
        "note: ignored, has no effect in rlsched: --qos=x, -q long, --requeue\n"
    )
    with pytest.raises(click.NoSuchOption, match="--licenses"):
        verb.make_context("verb", ["--qos=x", "--licenses=x", "python"])


def test_terminal_shows_that_the_broker_does_not_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    says = _WaitingLine(tmp_path)
    for waited_s in (0.0, 0.5, SILENT_S + 0.25, 3.0):
        says("tcp://x:1", waited_s, 5.0)
    says("tcp://x:1", 0.0, 5.0)
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert lines == [
        "",
        "the broker at tcp://x:1 has not answered yet: 1.2 of 5 s",
        "the broker at tcp://x:1 has not answered yet: 3.0 of 5 s",
        "",
    ]


def test_progress_shows_the_waiting_time(tmp_path: Path) -> None:
    keys, told = KeyHome(tmp_path), list[tuple[str, float, float]]()
    keys.broker()
    client = Client("tcp://127.0.0.1:1", home=tmp_path, timeout_s=0.6, waits=lambda *one: told.append(one))
    with client, pytest.raises(BrokerUnavailableError):
        client.jobs()
    waited = [seconds for _, seconds, _ in told]
    assert waited[-1] == 0.0
    assert waited[:-1] == sorted(waited[:-1])
    assert 0.2 < waited[-2] <= 0.7
    assert len(waited) > 3, "a few times a second"


def test_table_on_standard_input_may_start_with_a_byte_order_mark() -> None:
    ctx = submit.make_context("submit", ["--from", "-"])
    (row,) = _rows("-", io.StringIO("\ufeffname,command\na,true\n"), ctx)
    assert (row.asked["name"], row.asked["command"]) == ("a", ("true",))


class RecordingClient:
    """A client with a job and an array whose tasks run and wait; it records cancels."""

    def __init__(self) -> None:
        array = msgspec.structs.replace(info(5), state="running", tasks="3-9", num_tasks=10)
        task = msgspec.structs.replace(info(6, 5, 2), state="running")
        self.listed, self.told = [array, task, info(9)], list[tuple[int, bool]]()

    def __enter__(self) -> RecordingClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def jobs(self) -> list[JobInfo]:
        return self.listed

    def cancel(self, job: int, *, waiting: bool, **_: object) -> None:
        self.told.append((job, waiting))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--state PENDING", [(5, True), (9, True)]),
        ("-t PENDING 5 9", [(5, True), (9, True)]),
        ("--state running", [(6, False)]),
        ("--state queued,running", [(5, False), (9, False)]),
        ("--all", [(5, False), (9, False)]),
        ("5", [(5, False)]),
    ],
)
def test_waiting_and_running_tasks_of_an_array(
    monkeypatch: pytest.MonkeyPatch, words: str, expected: list[tuple[int, bool]]
) -> None:
    client = RecordingClient()
    monkeypatch.setattr(BrokerAt, "reach", lambda _: client)
    result = CliRunner().invoke(job_orders.cancel, words.split())
    assert (result.exit_code, client.told) == (0, expected), result.output


def test_waiting_only_is_refused_with_task_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerAt, "reach", lambda _: RecordingClient())
    result = CliRunner().invoke(job_orders.cancel, ["-t", "running", "5"])
    assert "expected queued, the only state" in str(result.exception)
    assert "got both" in str(CliRunner().invoke(job_orders.hold, ["-t", "queued", "5"]).exception)
