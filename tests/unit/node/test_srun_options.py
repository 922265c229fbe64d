"""Options of `srun`, its lists of nodes, and the names of its files."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest

import rlsched_node.slurm
from rlsched.engine.facts import hosts_of
from rlsched_node.slurm.hostlist import expanded
from rlsched_node.slurm.options import DEFAULTS, UsageError, parsed
from rlsched_node.slurm.outputs import file_of, is_of_srun, of_task, patterns, step_values

SCONTROL = Path(rlsched_node.slurm.__file__).parent / "bin" / "scontrol"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("", {}),
        ("-n4", {"ntasks": 4}),
        ("-n 4 --nodes=2", {"ntasks": 4, "nodes": 2}),
        ("-N 1-2", {"nodes": 2}),
        ("-lun3", {"label": True, "unbuffered": True, "ntasks": 3}),
        ("--ntasks-per-n=2", {"ntasks_per_node": 2}),
        ("-wn1,n2 -xn3", {"nodelist": "n1,n2", "exclude": "n3"}),
        ("-K", {"kill_on_bad_exit": True}),
        ("-K0", {}),
        ("--kill-on-bad-exit=1 --wait=60", {"kill_on_bad_exit": True, "wait_s": 60.0}),
        ("-G a100:2 --gpus-per-task=1", {"gpus": 2, "gpus_per_task": 1}),
        ("--gres=gpu", {"gpus_per_node": 1}),
        ("--gres gpu:a100:3", {"gpus_per_node": 3}),
        ("--gpu-bind=verbose,closest", {}),
        ("-t 1:30", {"time_s": 90.0}),
        ("-t 5", {"time_s": 300.0}),
        ("-t 1-2", {"time_s": 93_600.0}),
        ("-t 1-2:30", {"time_s": 95_400.0}),
        ("-t 1:00:01", {"time_s": 3601.0}),
        ("-t UNLIMITED", {}),
        ("--exclusive --overlap", {"exclusive": True, "overlap": True}),
        ("--exact -D /tmp -c 3", {"exclusive": True, "chdir": "/tmp", "cpus_per_task": 3}),
        ("-m cyclic:block,Pack", {"distribution": "cyclic"}),
        (
            "--open-mode=a -o x -e y -i none",
            {"open_mode": "append", "output": "x", "error": "y", "input": "none"},
        ),
        ("--mpi=none --jobid=7 -J name -v -s -O", {}),
        ("--export=ALL,A=1 -r 1", {"export": "ALL,A=1", "relative": 1}),
    ],
)
def test_options(line: str, changed: dict[str, object]) -> None:
    found = parsed([*line.split(), "train", "-n", "9"], {"SLURM_JOB_ID": "7"})
    assert found.command == ["train", "-n", "9"]
    assert found.options == DEFAULTS | changed
    assert not found.ignored


def test_zero_minutes_are_no_limit_and_none_is_given() -> None:
    assert parsed(["-t", "0", "x"], {}).options["time_s"] is None
    assert parsed(["-t", "0:00", "x"], {}).options["time_s"] == math.inf


def test_variables_of_slurm_set_options() -> None:
    environ = {
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_GPU_BIND": "single:2",
        "SRUN_CPUS_PER_TASK": "3",
        "SLURM_KILL_BAD_EXIT": "1",
        "SLURM_LABELIO": "0",
        "SLURM_WAIT": "5",
    }
    changed = {"job_ntasks": 8, "job_ntasks_per_node": 4, "gpus_per_task": 1, "cpus_per_task": 3}
    changed |= {"gpu_bind": "single:2", "kill_on_bad_exit": True, "wait_s": 5.0}
    assert parsed(["x"], environ).options == DEFAULTS | changed
    assert parsed(["-K0", "-c", "1", "x"], environ).options["kill_on_bad_exit"] is False
    with pytest.raises(UsageError, match="SLURM_NTASKS: --ntasks 'many': expected a number from 1"):
        parsed(["x"], {"SLURM_NTASKS": "many"})


def test_options_without_effect_are_named() -> None:
    words = [
        "--mem=3G",
        "-p",
        "gpu",
        "--cpu-bind",
        "cores",
        "--mem-bind=none",
        "--mem=0",
        "--hint=nomultithread",
        "x",
    ]
    assert parsed(words, {}).ignored == [
        "--mem=3G",
        "--partition=gpu",
        "--cpu-bind=cores",
        "--hint=nomultithread",
    ]


def test_double_dash_ends_the_options() -> None:
    assert parsed(["-l", "--", "-n"], {}).command == ["-n"]
    assert parsed(["--help"], {}).wants_help


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--pty bash", "--pty: rlsched's srun has no such option; tasks have no terminal"),
        ("--multi-prog x", "--multi-prog: rlsched's srun has no such option"),
        ("-Z x", "-Z: rlsched's srun has no such option"),
        ("--n 3 x", "--n: rlsched's srun has no such option"),
        ("-n", "-n: expected a value"),
        ("--label=yes x", "--label: expected no value, got 'yes'"),
        ("-n two x", "--ntasks 'two': expected a number from 1"),
        ("--mpi=pmi2 x", "--mpi 'pmi2': expected none (there is no start of MPI; use mpirun in the script)"),
        ("--gres=license:2 x", "--gres 'license:2': expected a number of GPUs, such as gpu:2"),
        ("--gpu-bind=mine x", "--gpu-bind 'mine': expected none, closest, single:N"),
        ("-m plane=4 x", "--distribution 'plane=4': expected block or cyclic"),
        ("-m arbitrary x", "--distribution 'arbitrary': expected block or cyclic"),
        ("-t soon x", "--time 'soon': expected minutes, 1:30:00 or 1-12 (days-hours)"),
        ("--jobid=8 x", "--jobid '8': expected 7, this job"),
        ("--exclusive=mcs x", "--exclusive=mcs: expected --exclusive"),
        ("--open-mode=w x", "--open-mode 'w': expected append or truncate"),
    ],
)
def test_bad_option_is_named(line: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(line.split(), {"SLURM_JOB_ID": "7"})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n0,n1", ["n0", "n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10],login", ["n08", "n09", "n10", "login"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("gpu-[1,3]-x,10.0.0.1", ["gpu-1-x", "gpu-3-x", "10.0.0.1"]),
        ("fd00::1,fd00::2", ["fd00::1", "fd00::2"]),
    ],
)
def test_list_of_nodes(text: str, hosts: list[str]) -> None:
    assert expanded(text) == hosts == hosts_of(text)
    done = subprocess.run([SCONTROL, "show", "hostnames", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == hosts
    env = {"SLURM_JOB_NODELIST": text, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([SCONTROL, "show", "hostname"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == hosts


@pytest.mark.parametrize("text", ["n[1", "n1]", "n[a]", "n[1-]", "n[1-99999]", "n[]", "n[-1]"])
def test_bad_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        expanded(text)
    done = subprocess.run([SCONTROL, "show", "hostnames", text], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"scontrol: {text!r}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [[], ["show", "job"], ["update", "x"], ["show", "hostnames", "a", "b"], ["show"]], ids=" ".join
)
def test_other_uses_of_scontrol_are_refused(words: list[str]) -> None:
    done = subprocess.run([SCONTROL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "rlsched has only `scontrol show hostnames [LIST]`" in done.stderr


def test_files_have_slurms_patterns() -> None:
    environ = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "resnet", "USER": "ada"}
    values = step_values(environ, 2) | {"t": "3", "n": "1", "N": "n1"}
    assert file_of("%x-%j.%s_%J-%u-%N-%n-%4t-%%-%q", values) == "resnet-17.2_17.2-ada-n1-1-0003-%-%q"
    assert file_of("%A_%a", step_values(environ, 0)) == "17_0"
    array = environ | {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "4"}
    assert file_of("%A_%a", step_values(array, 0)) == "9_4"


def test_srun_writes_only_files_that_all_tasks_share() -> None:
    assert [
        is_of_srun(one) for one in ("out-%j", "out-%%t", "out-%t", "out-%3n", "none", "all", "1", None)
    ] == [
        *(True, True),
        *[False] * 6,
    ]
    tasks = [of_task(one, 1, {"t": "1"}, "/w") for one in (None, "all", "none", "1", "0", "x", "x%t", "/y%t")]
    assert tasks == ["", "", "/dev/null", "", "/dev/null", "", "/w/x1", "/y1"]
    assert patterns({"output": "x", "error": None}) == ("x", "x")
    assert patterns({"output": "none", "error": None}) == ("none", None)
    assert patterns({"output": None, "error": "y"}) == (None, "y")
