"""Jobs of scripts for Slurm on a live cluster: their ends, and the processes that they leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.online.cluster import until
from tests.support.online.shell import Place

pytestmark = pytest.mark.slow
HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-node=2\n"
SAVES = """\
import os, pathlib, signal, sys, time
mine = pathlib.Path(f"{sys.argv[1]}.{os.environ['SLURM_PROCID']}")
def save(number, _):
    mine.write_text(mine.read_text() + "saved ")
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
mine.write_text("")
while True:
    time.sleep(0.02)
"""
TASKS = range(4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("scripts"))
    (place.folder / "saves.py").write_text(SAVES, encoding="utf-8")
    yield place
    place.stop()


def started(place: Place, name: str, line: str, *options: str) -> int:
    """A job whose tasks run."""
    script = place.folder / f"{name}.sh"
    script.write_text(f"{HEAD}{line}\n", encoding="utf-8")
    done = place.type(f"rlsched submit --parsable {' '.join(options)} {name}.sh")
    assert done.stderr == ""
    until(lambda: all((place.folder / f"{name}.{task}").exists() for task in TASKS), "its tasks run")
    return int(done.stdout)


def texts(place: Place, name: str) -> list[str]:
    return [(place.folder / f"{name}.{task}").read_text() for task in TASKS]


def processes(place: Place) -> list[str]:
    """The processes of jobs on this cluster."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if f"RLSCHED_ATTEMPT_DIR={place.folder}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_cancelled_job_saves_its_state_and_leaves_no_process(place: Place) -> None:
    job = started(place, "cancel", f"srun {sys.executable} saves.py cancel\necho never")
    assert len(processes(place)) >= 8
    place.client.cancel(job)
    until(lambda: place.client.job(job).state == "cancelled", "it is cancelled")
    until(lambda: not processes(place), "no process is left")
    assert texts(place, "cancel") == ["saved "] * 4


def test_time_limit_ends_all_tasks(place: Place) -> None:
    line = f"srun {sys.executable} saves.py limit\necho never"
    job = started(place, "limit", line, "-t", "60")
    place.client.update(job, time_limit_s=0.1)
    info = place.client.wait(job)
    assert (info.state, info.exit_code) == ("failed", 124)
    until(lambda: not processes(place), "no process is left")
    assert texts(place, "limit") == ["saved "] * 4


def test_requeued_job_runs_its_steps_again(place: Place) -> None:
    line = f"[ $RLSCHED_ATTEMPT = 1 ] || exec srun -n 2 -l echo again\nsrun {sys.executable} saves.py requeue"
    job = started(place, "requeue", line)
    place.client.requeue(job)
    assert place.client.wait(job).exit_code == 0
    assert sorted(b"".join(place.client.log(job)).decode().split("\n")) == ["", "0: again", "1: again"]
    assert texts(place, "requeue") == ["saved "] * 4


def test_failed_step_fails_the_job(place: Place) -> None:
    (place.folder / "fails.sh").write_text(f"{HEAD}set -e\nsrun sh -c 'exit $SLURM_PROCID'\necho never\n")
    done = place.type("rlsched run fails.sh")
    assert done.returncode == 3
    assert "never" not in done.stdout


def test_tasks_of_an_array_have_their_steps_and_files(place: Place) -> None:
    lines = "srun -o step-%a-%t.txt echo $SLURM_ARRAY_TASK_ID\necho end\n"
    (place.folder / "array.sh").write_text(f"{HEAD}#SBATCH --array=1-2 -o array-%a.txt\n{lines}")
    array = int(place.type("rlsched submit --parsable array.sh").stdout)
    until(lambda: not place.client.jobs(), "all tasks have ended")
    assert {job.state for job in place.client.jobs(finished=True) if job.array == array} == {"completed"}
    found = {path.name: path.read_text() for path in place.folder.glob("step-*.txt")}
    assert found == {f"step-{one}-{task}.txt": f"{one}\n" for one in (1, 2) for task in TASKS}
    assert [(place.folder / f"array-{one}.txt").read_text() for one in (1, 2)] == ["end\n"] * 2


def test_script_without_directives_and_wrapped_command_have_steps(place: Place) -> None:
    (place.folder / "plain.sh").write_text('#!/bin/bash\necho "on $SLURM_NODEID"\nsrun sh -c "echo task"\n')
    asks = "-N 2 --gpus-per-node=2"
    done = place.type(f"rlsched submit -W {asks} -o plain.txt plain.sh")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "plain.txt").read_text() == "on 0\ntask\ntask\n"
    command = "echo $SLURM_JOB_ID; srun sh -c 'echo $SLURM_PROCID' | sort; exit 3"
    done = place.type(f'rlsched submit -W {asks} -o wrap.txt --wrap "{command}"'.replace("$", "\\$"))
    assert done.returncode == 3, done.stderr
    job = place.client.jobs(finished=True)[-1].job
    assert (place.folder / "wrap.txt").read_text() == f"{job}\n0\n1\n"


def test_piped_script_has_steps(place: Place) -> None:
    (place.folder / "piped.sh").write_text(f"{HEAD}#SBATCH -o piped.txt\nsrun -n 1 hostname\n")
    done = place.type("rlsched submit -W < piped.sh")
    assert done.returncode == 0, done.stderr
    assert (place.folder / "piped.txt").read_text() == f"{os.uname().nodename}\n"
