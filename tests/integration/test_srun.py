"""Steps of a Slurm script's job: real processes of two nodes, as their shims start them."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.online.batch_job import BatchJob

pytestmark = pytest.mark.slow

SHOW = "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID"
TWO_PER_NODE = {"SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}
TRAPS = """\
import os, pathlib, signal, sys, time
name, *ends_s = sys.argv[1:]
here = pathlib.Path(f"{name}.{os.environ['SLURM_PROCID']}")
def got(number, _):
    here.write_text(here.read_text() + f"{number} ")
    if ends_s:
        time.sleep(float(ends_s[0]))
        here.write_text(here.read_text() + "saved")
        os._exit(7)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, got)
here.write_text("")
while True:
    time.sleep(0.01)
"""
"""A task that writes the signals that it receives to a file, and ends some seconds after the first one."""


def lines(job: BatchJob) -> list[str]:
    return sorted(job.output().splitlines())


def traps(folder: Path) -> str:
    (folder / "traps.py").write_text(TRAPS, encoding="utf-8")
    return f"{sys.executable} traps.py"


def test_script_runs_on_the_first_node_and_steps_on_all(tmp_path: Path) -> None:
    with BatchJob(tmp_path, f"echo script $SLURM_NODEID\nsrun sh -c '{SHOW}'") as job:
        assert lines(job) == ["0 0 0", "1 0 1", "script 0"]


def test_tasks_follow_the_directives_unless_srun_has_others(tmp_path: Path) -> None:
    script = (
        "echo all $SLURM_NTASKS $SLURM_NTASKS_PER_NODE $SLURM_TASKS_PER_NODE $SLURM_NPROCS\n"
        f"srun -l sh -c '{SHOW}'\necho\nsrun --ntasks-per-node=1 sh -c '{SHOW}'\n"
        f"echo\nsrun -N1 -n1 sh -c '{SHOW} only'\n"
    )
    with BatchJob(tmp_path, script, env=TWO_PER_NODE) as job:
        parts = [sorted(part.split("\n")) for part in job.output().strip().split("\n\n")]
    assert parts == [
        ["0: 0 0 0", "1: 1 1 0", "2: 2 0 1", "3: 3 1 1", "all 4 2 2(x2) 4"],
        ["0 0 0", "1 0 1"],
        ["0 0 0 only"],
    ]


def test_slurms_variables_of_a_task(tmp_path: Path) -> None:
    with BatchJob(tmp_path, "srun -n1 true\nsrun -c 3 -n 3 -m cyclic env") as job:
        text = job.output()
    found = {
        name: set(re.findall(rf"(?m)^{name}=(.*)$", text))
        for name in set(re.findall(r"(?m)^(SLURM\w+)=", text))
    }
    job_id = found.pop("SLURM_JOB_ID")
    assert found.pop("SLURM_JOBID") == job_id
    (cpus,) = found.pop("SLURM_CPUS_ON_NODE")
    assert found.pop("SLURM_JOB_CPUS_PER_NODE") == {f"{cpus}(x2)"}
    assert found == {
        "SLURM_SUBMIT_DIR": {str(tmp_path)},
        "SLURM_JOB_NAME": {"job.sh"},
        "SLURM_JOB_USER": {""},
        "SLURM_JOB_NUM_NODES": {"2"},
        "SLURM_NNODES": {"2"},
        "SLURM_JOB_NODELIST": {"127.0.0.1,n1"},
        "SLURM_NODELIST": {"127.0.0.1,n1"},
        "SLURMD_NODENAME": {"127.0.0.1", "n1"},
        "SLURM_LAUNCH_NODE_IPADDR": {"127.0.0.1"},
        "SLURM_GPUS_ON_NODE": {"2"},
        "SLURM_CPUS_PER_TASK": {"3"},
        "SLURM_STEP_ID": {"1"},
        "SLURM_STEPID": {"1"},
        "SLURM_STEP_NUM_NODES": {"2"},
        "SLURM_STEP_NODELIST": {"127.0.0.1,n1"},
        "SLURM_STEP_NUM_TASKS": {"3"},
        "SLURM_STEP_TASKS_PER_NODE": {"2,1"},
        "SLURM_TASKS_PER_NODE": {"2,1"},
        "SLURM_NTASKS": {"3"},
        "SLURM_NPROCS": {"3"},
        "SLURM_PROCID": {"0", "1", "2"},
        "SLURM_LOCALID": {"0", "1"},
        "SLURM_NODEID": {"0", "1"},
        "SLURM_GTIDS": {"0,2", "1"},
        "SLURM_DISTRIBUTION": {"cyclic"},
    }


def test_variables_of_the_script_reach_tasks_and_those_of_a_node_stay(tmp_path: Path) -> None:
    script = (
        "export SEED=3 GONE=1; unset RLSCHED_GRACE_S\n"
        "srun sh -c 'echo $SEED $RLSCHED_NODE_RANK $RLSCHED_GRACE_S ${RLSCHED_ATTEMPT_DIR##*/}'\n"
        "srun -n1 --export=NONE sh -c 'echo none $SEED $SLURM_PROCID'\n"
        "srun -n1 --export=GONE,NEW=5 sh -c 'echo some $SEED $GONE $NEW'\n"
        "srun -n1 --export=ALL,NEW=6 sh -c 'echo more $SEED $GONE $NEW'\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert lines(job) == ["3 0 rank0", "3 1 rank1", "more 3 1 6", "none 0", "some 1 5"]


def test_node_list_selects_nodes_by_either_name(tmp_path: Path) -> None:
    script = (
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        'echo $head $(srun -N1 -n1 -w "$head" sh -c "echo on \\$RLSCHED_NODE_RANK")\n'
        'echo $(srun -w n0 sh -c "echo on \\$RLSCHED_NODE_RANK")\n'
        'echo $(srun -w n1 sh -c "echo on \\$RLSCHED_NODE_RANK, \\$SLURM_NODEID of \\$SLURM_NNODES")\n'
        'echo $(srun -x n0 sh -c "echo not on 0 but on \\$RLSCHED_NODE_RANK")\n'
        "srun -w n7 true; echo $?\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().splitlines() == [
            *("127.0.0.1 on 0", "on 0", "on 1, 0 of 1", "not on 0 but on 1", "1"),
        ]
        assert "srun: error: --nodelist: n7 is not a node of this job: 127.0.0.1, n1" in job.errors()


def test_exit_code_is_the_highest_of_the_tasks(tmp_path: Path) -> None:
    script = (
        "srun -n 3 sh -c 'exit $((SLURM_PROCID + 3))'; echo $?\n"
        "srun sh -c '[ $SLURM_PROCID = 0 ] || kill -KILL $$'; echo $?\n"
        "srun ./missing; echo $?\nsrun -n1 ./job; echo $?\nsrun -D /nowhere -n1 true; echo $?\n"
        "srun true; echo $?\nsrun sh -c 'exit $((6 * SLURM_NODEID))'\n"
    )
    (tmp_path / "job").write_text("")
    with BatchJob(tmp_path, script) as job:
        assert job.ranks[0].wait(60) == 6, "of the script's last command"
        text, errors = job.ranks[0].communicate()
        assert text.split() == ["5", "137", "127", "126", "127", "0"]
    assert "srun: error: n1: task 2: Exited with exit code 5\n" in errors
    assert "srun: error: n1: task 1: Killed\n" in errors
    assert "srun: error: n1: task 1: ./missing: No such file or directory\n" in errors
    assert "task 0: ./job: Permission denied" in errors
    assert "task 0: /nowhere: No such file or directory" in errors


def test_steps_in_the_background_run_at_the_same_time(tmp_path: Path) -> None:
    script = (
        "srun -N1 -n1 -w n0 sh -c 'until [ -e b ]; do sleep 0.01; done; echo a >> order' &\n"
        "srun -N1 -n1 -w n1 sh -c 'touch b; exit 4' &\nlast=$!\nwait $last; echo $?\nwait; cat order\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().split() == ["4", "a"]


def test_steps_that_request_gpus_wait_for_each_other(tmp_path: Path) -> None:
    """Each of eight steps has a GPU of its own, although the job has four."""
    step = (
        "import os, pathlib, time\n"
        "mine = pathlib.Path(os.environ['SLURMD_NODENAME'] + '-' + os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "mine.mkdir()\ntime.sleep(0.2)\nmine.rmdir()\nprint(mine)\n"
    )
    (tmp_path / "step.py").write_text(step)
    script = (
        f"for one in $(seq 8); do srun -N1 -n1 --gpus=1 {sys.executable} step.py || echo fails & done\nwait\n"
    )
    with BatchJob(tmp_path, script) as job:
        found = lines(job)
    assert len(found) == 8
    assert set(found) == {"127.0.0.1-0", "127.0.0.1-1", "n1-0", "n1-1"}


def test_exclusive_steps_run_at_most_as_many_tasks_as_the_job_requested(tmp_path: Path) -> None:
    step = (
        "import os, pathlib, time\nmine = pathlib.Path(f'task-{os.getpid()}')\nmine.touch()\n"
        "time.sleep(0.1)\nprint(len(list(pathlib.Path('.').glob('task-*'))))\nmine.unlink()\n"
    )
    (tmp_path / "step.py").write_text(step)
    script = f"for one in $(seq 9); do srun -N1 -n1 --exclusive {sys.executable} step.py & done\nwait\n"
    with BatchJob(tmp_path, script, env={"SLURM_NTASKS": "3"}) as job:
        numbers = list(map(int, job.output().split()))
    assert len(numbers) == 9
    assert max(numbers) <= 3


def test_gpus_of_tasks(tmp_path: Path) -> None:
    show = "sh -c 'echo $SLURM_PROCID:$CUDA_VISIBLE_DEVICES'"
    script = "".join(
        f"echo {option} $(srun --ntasks-per-node=2 {option} {show} | sort)\n"
        for option in (
            "",
            "--gpus-per-task=1",
            "--gpu-bind=single:1",
            "--gpu-bind=map_gpu:1,0",
            "--gres=gpu:1",
        )
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().splitlines() == [
            "0:0,1 1:0,1 2:0,1 3:0,1",
            "--gpus-per-task=1 0:0 1:1 2:0 3:1",
            "--gpu-bind=single:1 0:0 1:1 2:0 3:1",
            "--gpu-bind=map_gpu:1,0 0:1 1:0 2:1 3:0",
            "--gres=gpu:1 0:0 1:0 2:0 3:0",
        ]


def test_input_goes_to_all_tasks_or_to_one(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file\n")
    script = (
        "echo all | srun -l cat\necho one | srun -l -i 1 cat\nsrun -n1 -i text cat\n"
        "echo nothing | srun -n1 -i none cat\nsrun -n1 cat < text\n"
        f"head -c 3000000 /dev/zero | srun {sys.executable} -c "
        "'import sys, time; time.sleep(0.2); print(len(sys.stdin.buffer.read()))'\n"
        "yes | srun -n1 head -n 1\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert lines(job) == sorted(
            ["0: all", "1: all", "1: one", "from a file", "from a file", "3000000", "3000000", "y"]
        )


def test_output_is_whole_and_in_lines(tmp_path: Path) -> None:
    code = (
        "import os, sys\nme = os.environ['SLURM_PROCID']\n"
        "for number in range(2000):\n    os.write(1, f'{me} '.encode()); os.write(1, b'x' * 400 + b'\\n')\n"
        "os.write(1, b'end')\n"
    )
    (tmp_path / "print.py").write_text(code)
    with BatchJob(tmp_path, f"srun -n 4 {sys.executable} print.py > all\n") as job:
        job.output()
    text = (tmp_path / "all").read_text()
    parts = text.replace("end", "").split("\n")
    assert text.count("end") == 4
    assert sorted(filter(None, parts)) == sorted(f"{me} {'x' * 400}" for me in range(4) for _ in range(2000))


def test_slow_reader_of_the_output_holds_up_the_tasks(tmp_path: Path) -> None:
    script = (
        "srun sh -c 'head -c 40000000 /dev/zero; touch done.$SLURM_PROCID' | "
        "(until [ -e go ]; do sleep 0.02; done; wc -c)\n"
    )
    with BatchJob(tmp_path, script) as job:
        sizes: list[int] = []
        job.until(lambda: _stand_still(job, sizes), "the tasks wait")
        servers = {pid: _memory_mib(pid) for pid in job.processes() if "batch.py" in _name(pid)}
        (tmp_path / "go").touch()
        assert job.output().split() == ["80000000"]
    assert len(servers) == 2
    assert max(servers.values()) < 64
    assert (tmp_path / "done.0").exists()


def _stand_still(job: BatchJob, sizes: list[int]) -> bool:
    """Whether the tasks have written nothing for half a second."""
    writers = [pid for pid in job.processes() if _name(pid).startswith("head ")]
    with suppress(OSError):
        texts = [Path(f"/proc/{pid}/io").read_text() for pid in writers]
        sizes.append(sum(int(re.findall(r"wchar: (\d+)", text)[0]) for text in texts))
    return len(writers) == 2 and len(sizes) > 25 and len({*sizes[-25:]}) == 1


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return ""


def _memory_mib(pid: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) >> 10


def test_output_files_have_slurms_patterns(tmp_path: Path) -> None:
    script = (
        "srun -o one-%j-%s.txt sh -c 'echo $SLURM_PROCID; echo no >&2'\n"
        "srun -o out-%t-%n-%N.txt -e err-%2t.txt sh -c 'echo $SLURM_PROCID; echo no >&2'\n"
        "srun -o one-0.txt sh -c 'echo first'\nsrun --open-mode=append -o one-0.txt sh -c 'echo second'\n"
        "srun -o none sh -c 'echo lost'\nsrun -o 1 sh -c 'echo task $SLURM_PROCID'\n"
        "srun -o nowhere/x true; echo $?\necho $SLURM_JOB_ID\n"
    )
    with BatchJob(tmp_path, script) as job:
        *said, number = job.output().split("\n")[:-1]
        assert "srun: error: nowhere/x: No such file or directory" in job.errors()
    assert said == ["task 1", "1"]
    texts = {path.name: sorted(path.read_text().split()) for path in tmp_path.glob("*.txt")}
    assert texts == {
        f"one-{number}-0.txt": ["0", "1", "no", "no"],
        "one-0.txt": ["first", "first", "second", "second"],
        "out-0-0-127.0.0.1.txt": ["0"],
        "out-1-1-n1.txt": ["1"],
        "err-00.txt": ["no"],
        "err-01.txt": ["no"],
    }


def test_failed_task_ends_the_step_if_asked_to(tmp_path: Path) -> None:
    script = (
        "srun -K1 sh -c '[ $SLURM_PROCID = 1 ] && exit 3; exec sleep 600'; echo $?\n"
        "srun -W 1 sh -c '[ $SLURM_PROCID = 1 ] || exec sleep 600'; echo $?\n"
        "srun -t 0:01 sleep 600; echo $?\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().split() == ["143", "143", "143"]
        assert "step 2: time limit reached" in job.errors()
        assert not job.processes()


def test_signal_to_srun_reaches_its_tasks_only(tmp_path: Path) -> None:
    program = traps(tmp_path)
    script = (
        f"srun {program} a 0.3 & a=$!\nsrun {program} b 0.3 & b=$!\n"
        "until [ -e a.0 -a -e a.1 -a -e b.0 -a -e b.1 ]; do sleep 0.02; done\n"
        "kill -USR1 $a; wait $a; echo $?\nkill -TERM $b; wait $b; echo $?\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().split() == ["7", "7"]
    texts = [(tmp_path / name).read_text() for name in ("a.0", "a.1", "b.0", "b.1")]
    assert texts == ["10 saved", "10 saved", "15 saved", "15 saved"]


@pytest.mark.parametrize("shell", ["#!/bin/bash", "#!/bin/sh"])
def test_signal_to_the_job_reaches_each_task_once(tmp_path: Path, shell: str) -> None:
    """As at a preemption: the tasks save their state, and the job ends with them."""
    with BatchJob(tmp_path, f"srun -n 4 {traps(tmp_path)} a 0.3\necho never", shell=shell) as job:
        job.has_files("a.0", "a.1", "a.2", "a.3")
        job.signal(signal.SIGTERM)
        assert job.wait() == [143, 0]
        assert not job.processes()
    assert [(tmp_path / f"a.{number}").read_text() for number in range(4)] == ["15 saved"] * 4


def test_nodes_can_receive_the_signal_to_the_job_one_after_the_other(tmp_path: Path) -> None:
    program = traps(tmp_path)
    with BatchJob(tmp_path, f"srun {program} a\necho never") as job:
        job.has_files("a.0", "a.1")
        os.killpg(job.ranks[0].pid, signal.SIGTERM)
        job.until(lambda: (tmp_path / "a.1").read_text(), "the server has passed it on")
        os.killpg(job.ranks[1].pid, signal.SIGTERM)
        os.killpg(job.ranks[1].pid, signal.SIGUSR1)
        job.until(lambda: "10" in (tmp_path / "a.1").read_text(), "the second signal has been passed on")
        assert [(tmp_path / name).read_text() for name in ("a.0", "a.1")] == ["15 ", "15 10 "]


def test_script_can_handle_the_signal_to_the_job(tmp_path: Path) -> None:
    script = f"trap 'echo saved' TERM\nsrun {traps(tmp_path)} a 0.3 & wait; wait; exit 0"
    with BatchJob(tmp_path, script) as job:
        job.has_files("a.0", "a.1")
        job.signal(signal.SIGTERM)
        assert lines(job) == ["saved"]
        assert job.wait() == [0, 0]


def test_end_of_the_script_ends_its_steps(tmp_path: Path) -> None:
    script = f"srun {traps(tmp_path)} a & \nuntil [ -e a.0 -a -e a.1 ]; do sleep 0.02; done; exit 3"
    with BatchJob(tmp_path, script) as job:
        assert job.wait() == [3, 0]
        assert not job.processes()
    assert (tmp_path / "a.1").read_text() == "15 "


def test_script_that_signals_its_own_group_ends(tmp_path: Path) -> None:
    """`kill 0` reaches only processes of the first node; the tasks on the other nodes end too."""
    script = (
        f"trap 'trap - TERM; kill 0' EXIT\nsrun {traps(tmp_path)} a 0.3 &\n"
        "until [ -e a.0 -a -e a.1 ]; do sleep 0.02; done\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.wait()[1] == 0
        assert not job.processes()
    assert [(tmp_path / name).read_text() for name in ("a.0", "a.1")] == ["15 saved"] * 2


def test_killed_srun_ends_its_step(tmp_path: Path) -> None:
    script = (
        f"srun {traps(tmp_path)} a & \nuntil [ -e a.0 -a -e a.1 ]; do sleep 0.02; done\n"
        "kill -KILL $!; wait $!; echo $?\nsrun true; echo $?\n"
        "while pgrep -f 'traps[.]py a$' > /dev/null; do sleep 0.02; done\n"
    )
    with BatchJob(tmp_path, script) as job:
        assert job.output().split() == ["137", "0"]
    assert (tmp_path / "a.1").read_text() == "15 "


def test_processes_that_a_task_leaves_are_ended(tmp_path: Path) -> None:
    script = "srun sh -c 'sleep 600 & echo left'; echo $?"
    with BatchJob(tmp_path, script) as job:
        assert job.output().split() == ["left", "left", "0"]
        assert not job.processes()


def test_processes_of_a_task_have_time_after_a_signal(tmp_path: Path) -> None:
    """A shell dies of SIGTERM at once; the program below it saves its state."""
    (tmp_path / "run.sh").write_text(f"{traps(tmp_path)} a 2\necho never\n")
    with BatchJob(tmp_path, "srun bash run.sh\necho never") as job:
        job.has_files("a.0", "a.1")
        job.signal(signal.SIGTERM)
        assert job.wait() == [143, 0]
    assert [(tmp_path / name).read_text() for name in ("a.0", "a.1")] == ["15 saved"] * 2


def test_lost_node_ends_its_tasks(tmp_path: Path) -> None:
    script = "srun -l sh -c 'touch on.$SLURM_PROCID; [ $SLURM_PROCID = 1 ] && exec sleep 600; true'; echo $?"
    with BatchJob(tmp_path, script) as job:
        job.has_files("on.0", "on.1")
        os.killpg(job.ranks[1].pid, signal.SIGKILL)
        text, errors = job.ranks[0].communicate(timeout=60)
        assert text.split() == ["1"]
        assert "srun: error: n1: task 1: the connection to the node was lost" in errors


def test_tasks_end_with_the_first_node(tmp_path: Path) -> None:
    with BatchJob(tmp_path, f"srun {traps(tmp_path)} a") as job:
        job.has_files("a.0", "a.1")
        os.kill(job.ranks[0].pid, signal.SIGKILL)
        assert job.ranks[1].wait(60) == 1
        assert "rlsched: the job's first node, 127.0.0.1 at the ports" in job.ranks[1].communicate()[1]
    assert (tmp_path / "a.1").read_text() == "15 "


def test_step_waits_for_a_node_that_starts_late(tmp_path: Path) -> None:
    with BatchJob(tmp_path, "touch begins\nsrun -N1 -n1 echo first\nsrun -l echo all", started=[0]) as job:
        job.has_files("begins")
        job.start(1)
        assert lines(job) == ["0: all", "1: all", "first"]


def test_short_script_ends_the_other_nodes(tmp_path: Path) -> None:
    with BatchJob(tmp_path, "echo done", started=[0]) as job:
        job.start(1)
        assert job.output() == "done\n"


def test_failed_script_does_not_wait_for_the_other_nodes(tmp_path: Path) -> None:
    with BatchJob(tmp_path, "exit 9", started=[0]) as job:
        assert job.ranks[0].wait(60) == 9


@pytest.mark.parametrize("shell", ["#!/bin/bash -l", "#!/bin/sh", "#!/usr/bin/env bash"])
def test_programs_are_found_in_every_shell(tmp_path: Path, shell: str) -> None:
    """A login shell sets PATH itself."""
    (tmp_path / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    with BatchJob(tmp_path, "srun -n1 echo on\nscontrol show hostnames", shell=shell) as job:
        assert job.output().split() == ["on", "127.0.0.1", "n1"]


def test_job_on_one_node(tmp_path: Path) -> None:
    with BatchJob(tmp_path, "srun -n 2 -l sh -c 'echo $SLURM_NNODES'", gpus=[1]) as job:
        assert lines(job) == ["0: 1", "1: 1"]


def test_job_on_fewer_nodes_than_requested(tmp_path: Path) -> None:
    """The number of tasks in all stays; one task per node stays one."""
    script = (
        "srun -N 2 --ntasks-per-node=2 -l echo x\nsrun -N 2 --ntasks-per-node=1 echo one\nsrun echo plain"
    )
    with BatchJob(tmp_path, script, gpus=[4], env=TWO_PER_NODE) as job:
        assert lines(job) == ["0: x", "1: x", "2: x", "3: x", "one", *["plain"] * 4]
        assert "the job asked for 2 nodes, and has 1; srun uses all of them" in job.errors()


def test_step_in_a_task(tmp_path: Path) -> None:
    script = "srun -w n1 sh -c 'srun -l -N 2 -n 2 --overlap sh -c \"echo \\$RLSCHED_NODE_RANK\"'"
    with BatchJob(tmp_path, script) as job:
        assert lines(job) == ["0: 0", "1: 1"]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("srun --pty bash", 2, "srun: error: --pty: rlsched's srun has no such option"),
        ("srun --mpi=pmix a", 2, "srun: error: --mpi 'pmix': expected none"),
        ("srun", 2, "srun: error: expected a command"),
        ("srun -n0 a", 2, "srun: error: --ntasks '0': expected a number from 1"),
        ("srun -N3 a", 1, "srun: error: --nodes 3: expected at most the 2 nodes that the step may use"),
        (
            "srun -n1 --gpus=3 a",
            1,
            "srun: error: the nodes of this job cannot run the step, which needs up to 3 GPUs per node",
        ),
        (
            "srun -n1 --gpu-bind=map_gpu:2 a",
            1,
            "srun: error: --gpu-bind map_gpu:2: expected GPU indices below 2",
        ),
        (
            "srun -n1 --mem=3G --hint=x true",
            0,
            "srun: note: ignored, has no effect in rlsched: --mem=3G, --hint",
        ),
        ("scontrol update x", 2, "scontrol: update x: in a job, rlsched has only `scontrol show hostnames"),
    ],
)
def test_other_uses_are_answered_in_one_line(tmp_path: Path, line: str, code: int, said: str) -> None:
    with BatchJob(tmp_path, line, started=[0]) as job:
        if not code:
            job.start(1)
        _, errors = job.ranks[0].communicate(timeout=60)
        assert job.ranks[0].returncode == code
        assert errors.startswith(said)
        assert errors.count("\n") == 1
