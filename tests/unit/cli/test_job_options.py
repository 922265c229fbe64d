"""Notation of times, begin times, dependencies, GPUs and environments."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import click
import pytest

from rlsched.cli.shared.job_options import (
    dependencies,
    exported,
    grace_s,
    lost_after_time_s,
    notices,
    slack_s,
    submission,
    time_s,
    total_gpus,
    when_s,
)
from rlsched.cli.shared.selecting import states_of
from rlsched.cli.shared.sizes import memory_mib
from rlsched.cli.users.batch_script import directives, read_script
from rlsched.cli.users.many_jobs import jobs_of, read_rows
from rlsched.cli.users.submit import submit
from rlsched.errors import InputError
from rlsched.wire.messages import DependsOn

NOON_S = time.mktime((2026, 11, 1, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1_800.0),
        ("1:30", 90.0),
        ("1:30:00", 5_400.0),
        ("1-12", 129_600.0),
        ("1-12:30", 131_400.0),
        ("2-0:0:5", 172_805.0),
        ("90s", 90.0),
        ("90m", 5_400.0),
        ("1.5h", 5_400.0),
        ("2d", 172_800.0),
        ("UNLIMITED", None),
        ("0", None),
    ],
)
def test_time_has_slurms_format_or_a_unit(text: str, expected: float | None) -> None:
    assert time_s(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-5", "0:0", "1h30m", "1-", "nan", "9" * 400])
def test_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match="expected minutes"):
        time_s(text)


@pytest.mark.parametrize(
    ("text", "later_s"),
    [
        ("now", 0.0),
        ("now+30", 30.0),
        ("now+2hours", 7_200.0),
        ("now+1h", 3_600.0),
        ("16:00", 4 * 3_600.0),
        ("11:30", 23.5 * 3_600.0),
        ("2026-11-01T13:00", 3_600.0),
    ],
)
def test_begin_times(text: str, later_s: float) -> None:
    assert when_s("--begin", text, NOON_S) == NOON_S + later_s


@pytest.mark.parametrize("text", ["tomorrow-ish", "25:00", "now+1fortnight", "now-1h"])
def test_invalid_begin_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--begin"):
        when_s("--begin", text, NOON_S)


def test_dependencies_have_slurms_syntax() -> None:
    found, singleton = dependencies("afterok:17:18,after:3,singleton")
    assert found == [DependsOn("afterok", 17), DependsOn("afterok", 18), DependsOn("after", 3)]
    assert singleton
    for wrong in ("afterok", "afterok:x", "before:3", "afterok:1?afterok:2", "after:3+5"):
        with pytest.raises(InputError, match="--dependency"):
            dependencies(wrong)


def typed(*options: str) -> dict[str, object]:
    """Options that a user types next to a command, as the verb receives them."""
    return submit.make_context("submit", [*options, "true"]).params


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("", 1),
        ("--gpus=3 --nodes=2", 3),
        ("--gpus-per-node=8 --nodes=2", 16),
        ("--gres=gpu:4", 4),
        ("--gres=gres/gpu:2 --nodes=3", 6),
        ("--gres=gpu", 1),
        ("--gpus-per-task=2 --ntasks=4", 8),
        ("--gpus=a100:3 --nodes=2", 3),
        ("--gres=gpu:h100:2 --nodes=2", 4),
    ],
)
def test_gpus_have_slurms_options(options: str, gpus: int) -> None:
    assert total_gpus(typed(*options.split())) == gpus


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ("", []),
        ("-Ga100:2", ["a100"]),
        ("--gpus-per-node=a100:2", ["a100"]),
        ("--gpus-per-task=a100:1", ["a100"]),
        ("--gres=gpu:a100:2", ["a100"]),
        ("--gres=gpu:a100", ["a100"]),
        ("--gpu-type=H100", ["H100"]),
        ("--gpu-type=A100,h100-80gb", ["A100", "h100-80gb"]),
        ("-C a100|h100", ["a100", "h100"]),
        ("--gpu-type=any -C a100", []),
        ("--gpu-type=H100 --gres=gpu:a100:2", ["H100"]),
    ],
)
def test_gpu_types_have_slurms_syntax_too(options: str, types: list[str]) -> None:
    assert submission(typed(*options.split()))["gpu_types"] == types


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ("", []),
        ("--prefer=H100", ["H100"]),
        ("--prefer=h100-80gb,A100", ["h100-80gb", "A100"]),
        ("--prefer a100|h100", ["a100", "h100"]),
        ("--prefer=any", []),
        ("--gpu-type=H100", []),
    ],
)
def test_preferred_gpu_types_have_slurms_option(options: str, types: list[str]) -> None:
    assert submission(typed(*options.split()))["preferred_types"] == types
    words, _ = directives("x", ["#!/bin/sh", f"#SBATCH {options}"] if options else ["#!/bin/sh"], submit)
    assert submission(typed(*words))["preferred_types"] == types


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--prefer=", "--prefer '': expected any, or GPU types such as H100 or A100,H100"),
        ("--prefer=A100,any", "--prefer 'A100,any': expected any"),
        ("--gpu-type=", "--gpu-type '': expected any, or GPU types such as H100"),
        ("--gpu-type=A100,any", "--gpu-type 'A100,any': expected any"),
        ("--constraint=a100&ib", "--constraint 'a100&ib': expected any"),
        ("--gres=fpga:1", "expected gpu:N or gpu:TYPE:N"),
        ("-Ga100:0", "0 is not in the range"),
        ("-G-1", "-1 is not in the range"),
    ],
)
def test_invalid_numbers_of_gpus_are_refused(option: str, said: str) -> None:
    with pytest.raises((click.UsageError, InputError), match=re.escape(said)):
        submission(typed(option))


def test_environment_of_a_job() -> None:
    own = {"PATH": "/bin", "TOKEN": "secret", "SHLVL": "2", "ODD": "\udcff"}
    assert exported("ALL", own) == {"PATH": "/bin", "TOKEN": "secret"}
    assert exported("NONE", own) == {}
    assert exported("PATH,A=1,GONE", own) == {"PATH": "/bin", "A": "1"}
    assert exported("ALL,PATH=/opt", own) == {"PATH": "/opt", "TOKEN": "secret"}
    with pytest.raises(InputError, match="expected ALL, NONE"):
        exported("=x", own)


def test_umask_is_sent_even_without_the_environment() -> None:
    before = os.umask(0o027)
    try:
        for words in (("--export=NONE",), ()):
            assert submission(typed(*words))["env"]["RLSCHED_UMASK"] == "0027"
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert submission(typed("--env", "RLSCHED_UMASK=077"))["env"]["RLSCHED_UMASK"] == "077"


def test_mail_types_become_notices() -> None:
    assert notices("start", "END,FAIL") == ["start", "end", "fail"]
    assert notices("", "ALL") == ["start", "end", "fail", "requeue"]
    assert notices("", "NONE") == []
    with pytest.raises(InputError, match="BEGIN, END, FAIL, REQUEUE"):
        notices("", "TIME_LIMIT_50")


def test_slurms_states_are_accepted() -> None:
    assert states_of("PD,R") == {"queued", "running"}
    with pytest.raises(InputError, match="--state 'pendng'"):
        states_of("pendng")


SCRIPT = """#!/bin/bash
# what it does
#SBATCH --job-name=resnet -N2
#SBATCH --gpus-per-node 4   # a comment
#SBATCH --mem=32G --exclusive
#SBATCH -o out-%j.txt -q long
#RLSCHED --preemptible --share no

#SBATCH -t 1:00:00
echo on
#SBATCH --time=5
"""


def parsed(tmp_path: object, text: str, *arguments: str) -> dict[str, object]:
    path = f"{tmp_path}/job.sh"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    context = submit.make_context("submit", [*arguments, path, "a", "b c"])
    return context.params


@pytest.mark.parametrize(("text", "expected_s"), [("60s", 60.0), ("5m", 300.0), ("45", 45.0), ("0", 0.0)])
def test_grace_is_a_time_or_seconds(text: str, expected_s: float) -> None:
    assert grace_s(text) == expected_s


@pytest.mark.parametrize("text", ["", "-1", "1:00", "soon", "inf"])
def test_invalid_grace_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        InputError, match=rf"--grace {text!r}: expected seconds \(60\), or a time such as 60s"
    ):
        grace_s(text)


def test_grace_is_a_directive_a_column_and_an_option(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#RLSCHED --grace 90s\n#SBATCH --signal=TERM@60\nsleep 1\n"
    assert submission(parsed(tmp_path, script))["grace_s"] == 90.0
    assert submission(parsed(tmp_path, script, "--grace", "2m"))["grace_s"] == 120.0
    table = tmp_path / "jobs.csv"
    table.write_text("grace,command\n60s,true\n,true\n", encoding="utf-8")
    context = submit.make_context("submit", ["--from", str(table)])
    jobs = jobs_of(str(table), read_rows(str(table), context))
    assert [job.keywords["grace_s"] for job in jobs] == [60.0, None]


def test_slack_is_a_directive_a_column_and_an_option(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#RLSCHED --slack 6h\nsleep 1\n"
    assert submission(parsed(tmp_path, script))["slack_s"] == 21_600.0
    assert submission(parsed(tmp_path, script, "--slack", "90"))["slack_s"] == 90.0
    assert submission(parsed(tmp_path, "#!/bin/bash\nsleep 1\n"))["slack_s"] == 0.0
    table = tmp_path / "jobs.csv"
    table.write_text("slack,command\n30m,true\n,true\n", encoding="utf-8")
    context = submit.make_context("submit", ["--from", str(table)])
    jobs = jobs_of(str(table), read_rows(str(table), context))
    assert [job.keywords["slack_s"] for job in jobs] == [1800.0, 0.0]


@pytest.mark.parametrize("text", ["", "-1", "1:00", "soon", "inf"])
def test_invalid_slack_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match=rf"--slack {text!r}: expected a time such as 6h or 30m, or seconds"):
        slack_s(text)


def test_slack_follows_from_a_latest_start_or_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "#!/bin/bash\nsleep 1\n"
    monkeypatch.setattr("rlsched.cli.shared.job_options.time.time", lambda: NOON_S)

    def slack(*options: str) -> object:
        return submission(parsed(tmp_path, script, *options))["slack_s"]

    assert slack("--start-by", "16:00") == 4 * 3_600.0
    assert slack("--finish-by", "now+10h", "-t", "6:00:00") == 4 * 3_600.0
    assert slack("--finish-by", "now+1h", "--time-limit", "3600") == 0.0
    directive = script.replace("sleep", "#RLSCHED --start-by now+90m\nsleep")
    assert submission(parsed(tmp_path, directive))["slack_s"] == 5_400.0
    for options, said in (
        (("--start-by", "soon"), "--start-by 'soon': expected now+1h"),
        (("--start-by", "2020-01-01"), "--start-by '2020-01-01': expected a time in the future"),
        (("--finish-by", "now+1h"), "--finish-by 'now+1h': expected a time limit too, such as -t 6:00:00"),
        (
            ("--finish-by", "now+1h", "-t", "90"),
            "expected a time at least 1.5 h from now, which is the time limit, got a time 1.0 h from now",
        ),
        (
            ("--slack", "1h", "--start-by", "16:00"),
            "--slack and --start-by: expected one of the two, got both",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            slack(*options)


def test_script_with_directives(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    found = parsed(tmp_path, SCRIPT, "-t", "2h", "--gpus-per-node", "8")
    assert (found["name"], found["nodes"]) == ("resnet", 2)
    assert total_gpus(found) == 16, "the command line overrides directives"
    assert found["time"] == "2h"
    assert (found["preemptible"], found["share"]) == (True, "no")
    assert found["mem"] == "32G"
    assert (found["output"], found["error"], found["open_mode"]) == ("out-%j.txt", "", "auto")
    assert found["command"] == ("/bin/bash", "-c", SCRIPT, f"{tmp_path}/job.sh", "a", "b c")
    assert found["exclusive"] is True
    said = capsys.readouterr().err
    assert said.startswith("note: ")
    assert said.endswith("in rlsched: -q long\n")


def test_exclusive_is_a_directive_a_column_and_an_option(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --exclusive\ntrue\n"
    assert submission(parsed(tmp_path, script))["exclusive"] is True
    assert submission(parsed(tmp_path, "#!/bin/bash\ntrue\n", "--exclusive"))["exclusive"] is True
    table = tmp_path / "jobs.csv"
    table.write_text("exclusive,command\ntrue,true\n,true\n", encoding="utf-8")
    context = submit.make_context("submit", ["--from", str(table)])
    jobs = jobs_of(str(table), read_rows(str(table), context))
    assert [job.keywords["exclusive"] for job in jobs] == [True, False]


def test_preference_is_a_directive_a_column_and_an_option(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#RLSCHED --prefer H100\nsleep 1\n"
    assert submission(parsed(tmp_path, script))["preferred_types"] == ["H100"]
    assert submission(parsed(tmp_path, script, "--prefer", "any"))["preferred_types"] == []
    table = tmp_path / "jobs.csv"
    table.write_text('prefer,command\n"A100,H100",true\nT4|V100,true\n,true\n', encoding="utf-8")
    context = submit.make_context("submit", ["--from", str(table)])
    jobs = jobs_of(str(table), read_rows(str(table), context))
    found = [job.keywords["preferred_types"] for job in jobs]
    assert found == [["A100", "H100"], ["T4", "V100"], []]


def test_only_a_script_for_slurm_gets_slurm_s_variables(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -c 4 --job-name=resnet\ntrue\n"
    env = submission(parsed(tmp_path, script, "--export=NONE", "--env", "SLURM_JOB_NAME=mine"))["env"]
    mine = {name: value for name, value in env.items() if name.startswith("SLURM")}
    assert mine == {
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_JOB_PARTITION": "",
        "SLURM_JOB_NAME": "mine",
        "SLURM_CPUS_PER_TASK": "4",
    }
    assert re.fullmatch("[0-9a-f]{64}", env["RLSCHED_STEPS_KEY"])
    env = submission(parsed(tmp_path, script, "--name", "other"))["env"]
    assert env["SLURM_JOB_NAME"] == "other"
    env = submission(parsed(tmp_path, script, "-p", "gpu", "-A", "vision"))["env"]
    assert (env["SLURM_JOB_PARTITION"], env["SLURM_JOB_ACCOUNT"]) == ("gpu", "vision")
    env = submission(parsed(tmp_path, script.replace("SBATCH", "RLSCHED"), "--export=NONE"))["env"]
    assert list(env) == ["RLSCHED_UMASK"]


TASKS = (
    "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4 --gpus-per-task=a100:1 -c 3 --mem-per-cpu=1G\nsrun true\n"
)


def test_tasks_of_a_script_for_slurm(tmp_path: Path) -> None:
    asked = submission(parsed(tmp_path, TASKS))
    assert (asked["num_gpus"], asked["num_cpus"], asked["memory_mib"]) == (8, 24, 24 << 10)
    of_steps = {
        name: value for name, value in asked["env"].items() if name.startswith(("SLURM_N", "SLURM_G"))
    }
    assert of_steps == {
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_GPUS_PER_TASK": "1",
    }
    asked = submission(parsed(tmp_path, TASKS, "-n", "6"))
    assert (asked["num_gpus"], asked["num_cpus"], asked["env"]["SLURM_NTASKS"]) == (6, 18, "6")


@pytest.mark.parametrize(
    ("options", "gpus", "cores", "tasks"),
    [
        ("-G 2 --ntasks-per-gpu=1 --cpus-per-gpu=4", 2, 8, "2"),
        ("-N 2 --gpus-per-node=4 --ntasks-per-gpu=2 -c 3", 8, 48, "16"),
        ("-n 5 --ntasks-per-gpu=2", 3, 0, "5"),
        ("-N 2 --gres=gpu:2 -n 4 --cpus-per-gpu=6", 4, 24, "4"),
    ],
)
def test_numbers_for_each_gpu(tmp_path: Path, options: str, gpus: int, cores: int, tasks: str) -> None:
    asked = submission(parsed(tmp_path, "#!/bin/bash\n#SBATCH -t 5\n", *options.split()))
    assert (asked["num_gpus"], asked["num_cpus"], asked["env"]["SLURM_NTASKS"]) == (gpus, cores, tasks)
    bound = re.search(r"ntasks-per-gpu=(\d)", options)
    assert asked["env"].get("SLURM_GPU_BIND") == (bound and f"single:{bound[1]}")
    assert asked["env"].get("SLURM_CPUS_PER_GPU") == (
        None if "cpus-per" not in options else str(cores // gpus)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ntasks-per-gpu=1 --gpus-per-task=1", "--ntasks-per-gpu and --gpus-per-task: expected one of the"),
        ("--ntasks-per-gpu=1 --ntasks-per-node=1", "--ntasks-per-gpu and --ntasks-per-node: expected one of"),
        ("-p gpu,debug", r"--partition gpu,debug: expected one partition \(VC\), got a list"),
        ("--cpus-per-gpu=1 -c 1", "--cpus-per-gpu and -c: expected one of the two, got both"),
        ("--no-requeue", "--no-requeue: rlsched has no such option; the job can be requeued"),
        ("--signal USR1@60", "--signal USR1@60: rlsched has no such option; give --grace too: a job gets"),
    ],
)
def test_options_that_exclude_each_other_or_do_not_exist(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        submission(typed(*options.split()))


@pytest.mark.parametrize("launcher", ["none", "torchrun", "per-gpu"])
def test_script_for_slurm_has_no_steps_with_a_launcher(tmp_path: Path, launcher: str) -> None:
    for text, arguments in (
        (TASKS, ["--launch", launcher]),
        (TASKS.replace("\nsrun", f"\n#RLSCHED --launch {launcher}\nsrun"), []),
    ):
        asked = submission(parsed(tmp_path, text, *arguments))
        assert asked["launcher"] == launcher
        assert not {"RLSCHED_STEPS_KEY", "SLURM_NTASKS", "SLURM_NNODES"} & set(asked["env"])
        assert "SLURM_SUBMIT_DIR" in asked["env"]


def test_rows_of_a_table_have_the_steps_of_their_scripts(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(TASKS, encoding="utf-8")
    table = tmp_path / "jobs.csv"
    table.write_text(f"env,launch,command\nA=1,,{script}\n,none,{script}\n,,{script}\n", encoding="utf-8")

    def environments(*arguments: str) -> list[dict[str, str]]:
        context = submit.make_context("submit", ["--from", str(table), *arguments])
        return [job.keywords["env"] for job in jobs_of(str(table), read_rows(str(table), context))]

    first, second, third = environments("--env", "B=2")
    assert (first["A"], third["B"]) == ("1", "2")
    assert [env.get("SLURM_NTASKS") for env in (first, second, third)] == ["8", None, "8"]
    assert first["RLSCHED_STEPS_KEY"] != third["RLSCHED_STEPS_KEY"]
    assert not any("RLSCHED_STEPS_KEY" in env for env in environments("--launch", "none"))


@pytest.mark.parametrize(
    ("line", "is_slurms"),
    [
        ("srun python train.py", True),
        ("OMP_NUM_THREADS=4 srun python train.py &", True),
        ("if srun true; then srun false; fi", True),
        ("cd /tmp && time srun true", True),
        ("(srun -n 1 true)", True),
        ('LAUNCH="srun -n 2"', True),
        ("bash -lc 'srun true'", True),
        ("srun", True),
        ("nodes=$(scontrol show hostnames)", True),
        ('x=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', True),
        ("scontrol show job 7", False),
        ("sbatch next.sh", False),
        ("torchrun train.py  # or srun; srun is not here", False),
        ("# srun python train.py", False),
        ("echo srun is not here", False),
        ('srun () { "$@"; }', False),
        ("my_srun train", False),
    ],
)
def test_shell_script_that_calls_srun_is_for_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, is_slurms: bool
) -> None:
    text = f"#!/bin/bash\n{line}\n"
    env = submission(parsed(tmp_path, text, "-N2", "-n4", "--export=NONE"))["env"]
    assert ("RLSCHED_STEPS_KEY" in env, env.get("SLURM_NTASKS")) == (is_slurms, "4" if is_slurms else None)
    env = submission(parsed(tmp_path, text, "-N2", "--export=NONE", "--launch=none"))["env"]
    assert "RLSCHED_STEPS_KEY" not in env
    capsys.readouterr()
    env = submission(parsed(tmp_path, f"#!/usr/bin/env python3\n{line}\n", "-N2", "--export=NONE"))["env"]
    assert "RLSCHED_STEPS_KEY" not in env
    assert "RLSCHED_STEPS_KEY" not in submission(typed("-N2"))["env"]


def test_script_that_reads_slurm_s_variables_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "#!/bin/bash\n#RLSCHED -t 5\ntorchrun --rdzv-id ${SLURM_JOB_ID:-0} train.py\n"
    env = submission(parsed(tmp_path, text, "--export=NONE"))["env"]
    assert "SLURM_SUBMIT_DIR" in env
    assert "RLSCHED_STEPS_KEY" not in env
    assert not capsys.readouterr().err
    parsed(tmp_path, text, "-N2")
    assert "note: " in (said := capsys.readouterr().err)
    assert "without #SBATCH lines and srun, the script runs once on each node" in said
    parsed(tmp_path, text, "-N2", "--launch=torchrun")
    assert not capsys.readouterr().err


def test_wrapped_command_is_a_script_for_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def wrapped(text: str, *options: str) -> dict[str, object]:
        return submission(submit.make_context("submit", [*options, "--wrap", text]).params)

    asked = wrapped("srun hostname; sbatch next.sh", "-N2", "--export=NONE")
    assert asked["name"] == "wrap"
    assert {"RLSCHED_STEPS_KEY", "SLURM_SUBMIT_DIR"} < set(asked["env"])  # type: ignore[call-overload]
    said = capsys.readouterr().err
    assert said.startswith("note: --wrap, line 1: sbatch: of Slurm's commands, a job has only srun")
    assert "RLSCHED_STEPS_KEY" not in wrapped("true", "--launch", "none")["env"]  # type: ignore[operator]
    table = tmp_path / "jobs.csv"
    table.write_text("name,wrap\na,srun true\n,true\n", encoding="utf-8")
    context = submit.make_context("submit", ["--from", str(table), "--env", "B=2"])
    first, second = (job.keywords for job in jobs_of(str(table), read_rows(str(table), context)))
    assert (first["name"], second["name"], first["env"]["B"]) == ("a", "wrap", "2")
    assert first["env"]["RLSCHED_STEPS_KEY"] != second["env"]["RLSCHED_STEPS_KEY"]


@pytest.mark.parametrize(
    ("line", "call", "with_launcher"),
    [
        ("srun python train.py", "", "srun"),
        ("  exec srun --label hostname", "", "srun"),
        ('head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "", "scontrol show"),
        ("nodes=( $(scontrol show hostname ) )", "", "scontrol show"),
        ("scontrol show job $SLURM_JOB_ID", "scontrol show", "scontrol show"),
        ("scontrol update JobId=7 TimeLimit=5", "scontrol update", "scontrol update"),
        ("sbcast data /tmp/data", "sbcast", "sbcast"),
        ("time sbatch next.sh", "sbatch", "sbatch"),
        ("squeue", "squeue", "squeue"),
        ("# srun python train.py", "", ""),
        ("echo srun is not here", "", ""),
        ('srun () { "$@"; }', "", ""),
        ("my_srun train", "", ""),
    ],
)
def test_calls_of_slurm_that_a_job_does_not_have_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, call: str, with_launcher: str
) -> None:
    where = f"note: {tmp_path}/job.sh, line 3: "
    why = "of Slurm's commands, a job has only srun and scontrol show hostnames"
    parsed(tmp_path, f"#!/bin/bash\n#SBATCH -t 5\n{line}\n")
    assert capsys.readouterr().err == (f"{where}{call}: {why}\n" if call else "")
    why = "with --launch per-gpu the script runs on each node, without Slurm's commands"
    parsed(tmp_path, f"#!/bin/bash\n#SBATCH -t 5\n{line}\n", "--launch", "per-gpu")
    assert capsys.readouterr().err == (f"{where}{with_launcher}: {why}\n" if with_launcher else "")
    parsed(tmp_path, f"#!/bin/bash\n#RLSCHED -t 5\n{line}\n")
    assert not capsys.readouterr().err, "a script without lines for Slurm"


@pytest.mark.parametrize(
    ("options", "line", "is_named"),
    [
        ("-N2", "torchrun train.py", True),
        ("-N2", "time srun torchrun train.py", False),
        ("-N2", "mpirun train", False),
        ("-N1", "torchrun train.py", False),
        ("-N2 --launch none", "torchrun train.py", False),
    ],
)
def test_script_that_uses_only_one_of_its_nodes_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, line: str, is_named: bool
) -> None:
    parsed(tmp_path, f"#!/bin/bash\n#SBATCH {options}\n{line}\n")
    why = "without srun, the script uses only the job's first node; --launch none runs it on each node"
    assert capsys.readouterr().err == (f"note: {tmp_path}/job.sh: {why}\n" if is_named else "")


def test_default_name_of_a_script_is_its_file_name(tmp_path: object) -> None:
    assert parsed(tmp_path, "#!/bin/sh\ntrue\n")["name"] == "job.sh"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#SBATCH --licenses=matlab", "line 2: #SBATCH --licenses=matlab: rlsched has no such option"),
        ("#SBATCH --no-requeue", "job.sh: --no-requeue: rlsched has no such option; the job can be requeued"),
        (
            "#SBATCH --signal=B:USR1@120 -t 5",
            "job.sh: --signal=B:USR1@120: rlsched has no such option; give --grace too",
        ),
        ("#RLSCHED --memo 3G", "line 2: #RLSCHED --memo 3G: rlsched has no such option"),
        ("#SBATCH --job-name='open", "No closing quotation"),
    ],
)
def test_unknown_directive_is_named(tmp_path: object, line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parsed(tmp_path, f"#!/bin/sh\n{line}\ntrue\n")


def test_invalid_value_in_a_directive_is_reported_as_on_the_command_line(tmp_path: object) -> None:
    with pytest.raises(click.UsageError) as told:
        parsed(tmp_path, "#!/bin/sh\n#SBATCH --gpus=none\ntrue\n")
    assert "'--gpus'" in told.value.format_message()


def test_programs_and_other_scripts_are_run_unchanged(tmp_path: object) -> None:
    assert read_script(["python", "train.py"], submit) is None
    assert read_script(["/bin/true"], submit) is None
    with open(f"{tmp_path}/x.py", "w", encoding="utf-8") as file:
        file.write("#!/usr/bin/env python3\n#RLSCHED --gpus 2\nprint()\n")
    script = read_script([f"{tmp_path}/x.py", "1"], submit)
    assert script is not None
    assert script.command == [f"{tmp_path}/x.py", "1"]
    assert script.arguments == ["--gpus", "2"]


def command_of(*words: str) -> tuple[str, ...]:
    """The command of a job that a user submits with these words."""
    return tuple(submit.make_context("submit", list(words)).params["command"])


def test_script_that_is_not_executable_is_run_by_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "x.py"
    script.write_text("#!/usr/bin/env python3\nprint()\n", encoding="utf-8")
    assert command_of("x.py", "1") == ("/usr/bin/env", "python3", str(script), "1")
    assert command_of("-D", "/tmp", "./x.py") == ("/usr/bin/env", "python3", str(script))
    assert command_of("--launch", "torchrun", "x.py", "1") == ("x.py", "1")
    script.chmod(0o755)
    assert command_of("x.py", "1") == (str(script), "1")
    other = tmp_path / "latin.sh"
    other.write_bytes("#!/bin/bash\n# caf\xe9\n#SBATCH -J latin\ntrue\n".encode("latin-1"))
    context = submit.make_context("submit", ["latin.sh", "1"])
    assert context.params["command"] == ("/bin/bash", str(other), "1")
    assert context.params["name"] == "latin"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plain.sh", "plain.sh: expected a script whose first line begins with #!, such as #!/bin/bash"),
        ("./plain.sh", "./plain.sh: expected a script whose first line begins with #!"),
        ("blank.sh", "blank.sh: expected a script whose first line begins with #!"),
        ("empty", "empty: expected a script whose first line begins with #!"),
        ("./missing.sh 3", "./missing.sh: no such file"),
        ("missing.sh", "missing.sh: no such file"),
        ("-D sub ./plain.sh", "./plain.sh: no such file"),
        ("{here}/missing", "{here}/missing: no such file"),
        ("./sub", "./sub: expected a script or a program, got a directory"),
        ("./binary", "./binary: the file is not executable"),
        ("--from jobs.csv", "jobs.csv, line 2: ./missing.sh: no such file"),
    ],
)
def test_command_that_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    files_without_a_program(tmp_path, monkeypatch)
    given = words.format(here=tmp_path).split()
    with pytest.raises(InputError, match=re.escape(said.format(here=tmp_path))):
        read_rows("jobs.csv", submit.make_context("submit", given))


def files_without_a_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a folder with files that are no programs."""
    monkeypatch.chdir(folder)
    (folder / "sub").mkdir()
    for name, text in (("plain.sh", "true\n"), ("blank.sh", "\n#!/bin/bash\n"), ("empty", "")):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "plain.sh").chmod(0o755)
    (folder / "binary").write_bytes(b"\x7fELF\0\0")
    (folder / "jobs.csv").write_text("command\n./missing.sh\n", encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        "nvidia-smi",
        "sh",
        "sub",
        "/usr/bin/missing",
        "/nowhere/x",
        "-D /nowhere ./x",
        "--launch torchrun plain.sh",
    ],
)
def test_program_that_the_nodes_may_have_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    files_without_a_program(tmp_path, monkeypatch)
    assert command_of(*words.split()) == (words.split()[-1],)


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ({}, 0),
        ({"mem": "64G"}, 65_536),
        ({"mem": "500"}, 500),
        ({"mem": "1.5T", "nodes": 2}, 3 << 20),
        ({"mem": "10KB"}, 1),
        ({"mem_per_gpu": "2GiB"}, 8192),
        ({"mem_per_cpu": "100M", "cpus_per_task": 3, "ntasks": 2}, 600),
    ],
)
def test_memory_has_slurms_syntax(options: dict[str, object], mib: int) -> None:
    asked = typed() | options
    assert memory_mib(asked, 4) == mib


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mem": "much"}, r"--mem 'much': expected a size such as 64G"),
        ({"mem": "-1"}, r"--mem '-1': expected a size"),
        ({"mem": "0"}, r"--mem 0: expected a size such as 64G; without the option, a job has memory in"),
        ({"mem_per_gpu": "0G"}, r"--mem-per-gpu 0G: expected a size"),
        ({"mem": "1G", "mem_per_gpu": "1G"}, "expected only one of --mem, --mem-per-gpu and --mem-per-cpu"),
        ({"mem_per_cpu": "1G"}, "--mem-per-cpu: use it together with -c"),
    ],
)
def test_invalid_memory_is_refused(options: dict[str, object], said: str) -> None:
    asked = {param.name: None for param in submit.params} | options
    with pytest.raises(InputError, match=said):
        memory_mib(asked, total_gpus(asked))


@pytest.mark.parametrize(("text", "time_s"), [("never", 0.0), ("600", 600.0), ("90s", 90.0), ("2h", 7200.0)])
def test_lost_after_is_a_time(text: str, time_s: float) -> None:
    assert lost_after_time_s(text) == time_s


@pytest.mark.parametrize("text", ["", "soon", "-5", "1:30"])
def test_invalid_lost_after_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"--lost-after: expected a time .*; `never` is also accepted"):
        lost_after_time_s(text)
