"""Slurm's habits: every line of docs/how-to/from-slurm.md is run on a live cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.online.cluster import DEADLINE_S, until
from tests.support.online.shell import Place

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "from-slurm.md"
pytestmark = pytest.mark.slow
_UNSUPPORTED = "What there is not"  # prose: quoted


def habits(heading: str) -> list[str]:
    """The commands in the second column of the table below a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\|[^|]*\| `(?:rlsched )?(.*)` \|$", text, re.M)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("habits"))
    yield place
    place.stop()


@pytest.mark.parametrize(
    "line", [one for part in ("Submitting", "Watching", "Changing") for one in habits(part)]
)
def test_habit_works(place: Place, line: str) -> None:
    done = place.type(place.with_numbers(f"rlsched {line}"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "no effect" not in done.stderr
    if not line.startswith("node "):
        place.clear()


@pytest.mark.parametrize("line", habits("Named and ignored"))
def test_habit_without_effect_is_noted_by_name(place: Place, line: str) -> None:
    done = place.type(f"rlsched {line}")
    assert done.returncode == 0, done.stderr
    (word,) = (word for word in line.split() if word.startswith("-"))
    (note,) = re.findall("(?m)^note: .*", done.stderr)
    assert word in note
    place.clear()


def lines_of_scripts() -> list[str]:
    """The lines in the table of lines in scripts."""
    text = PAGE.read_text(encoding="utf-8").split("## In a script\n")[1].split("\n## ")[0]
    return [one.replace("\\|", "|") for one in re.findall(r"^\| `(.*?)` \|", text, re.M)]


@pytest.mark.parametrize("line", lines_of_scripts())
def test_line_of_a_script_works(place: Place, line: str) -> None:
    script = place.folder / "line.sh"
    directives = "-N 2 --ntasks-per-node=2 --gpus-per-node=2 -t 5"
    train = "import os; assert int(os.environ['SLURM_PROCID']) < int(os.environ['SLURM_NTASKS'])\n"
    (place.folder / "train.py").write_text(train, encoding="utf-8")
    script.write_text(f"#!/bin/bash\n#SBATCH {directives}\nset -e\n{line}\nsrun true\n", encoding="utf-8")
    done = place.type("rlsched run line.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stdout
    assert "note:" not in done.stdout + done.stderr
    place.clear()


@pytest.mark.parametrize("line", habits(_UNSUPPORTED))
def test_unsupported_habit_is_refused_by_name(place: Place, line: str) -> None:
    done = place.type(place.with_numbers(f"rlsched {line}"))
    assert done.returncode == 2, done.stdout
    (said,) = (one for one in done.stderr.splitlines() if not one.startswith("note: "))
    named = ("-", "Num", "NodeName", "PartitionName")
    words = [word for word in line.split() if word.startswith(named) or word in ("salloc", "scontrol")]
    word = words[0]
    assert word.partition("=")[0].lstrip("-") in said or {"-o": "--format", "-s": "--state"}[word] in said
    place.clear()


def test_document_has_at_least_sixty_habits() -> None:
    works = [one for part in ("Submitting", "Watching", "Changing") for one in habits(part)]
    assert len(works) >= 50
    assert len(lines_of_scripts()) >= 12
    assert len(works) + len(habits(_UNSUPPORTED)) >= 60


def test_script_for_two_nodes_needs_only_another_verb(place: Place) -> None:
    script = place.folder / "gang.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=gang\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=2\n"
        "#SBATCH --time=10\n#SBATCH --mem=64M\n#SBATCH --hint=nomultithread\n\n"
        'echo "nodes: $(scontrol show hostnames | wc -l), $SEED"\n'
        "srun -l sh -c 'echo \"task $SLURM_PROCID of $SLURM_NTASKS, $SEED\"; exit $SLURM_PROCID'\n",
        encoding="utf-8",
    )
    done = place.type("SEED=7 rlsched run gang.sh")
    lines = [line.removeprefix("0: ") for line in done.stdout.splitlines()]  # of the first node
    assert re.fullmatch(r"srun: error: n\d: task 1: Exited with exit code 1", max(lines))
    assert sorted(lines)[:-1] == ["0: task 0 of 2, 7", "1: task 1 of 2, 7", "nodes: 2, 7"]
    assert done.returncode == 1  # of the second task
    assert "--hint=nomultithread" in done.stderr
    place.clear()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-n 4 -l", ["0: 0 of 4", "1: 1 of 4", "2: 2 of 4", "3: 3 of 4"]),
        ("-l", ["0: 0 of 1"]),
        ("-N 2 --ntasks-per-node=1 --gpus-per-node=2", ["0 of 2", "1 of 2"]),
    ],
)
def test_run_starts_tasks_as_srun_does(place: Place, options: str, expected: list[str]) -> None:
    done = place.type(
        f"rlsched run {options} -- sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS; exit $SLURM_PROCID'"
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("srun: error: ")]
    assert sorted(lines) == expected, done.stderr
    assert done.returncode == len(expected) - 1
    assert "note: " not in done.stderr
    assert place.client.jobs(finished=True)[-1].name == "sh"


def test_run_notes_that_it_forwards_no_input(place: Place) -> None:
    for line, is_noted in (("echo on | rlsched run cat", True), ("rlsched run cat < /dev/null", False)):
        done = place.type(line)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert ("note: standard input is not forwarded" in done.stderr) is is_noted


def test_run_notes_another_number_of_nodes(place: Place) -> None:
    done = place.type("rlsched run -N 2 -G 2 true")
    assert "note: --nodes 2: the job has 1 node" in done.stderr
    done = place.type("rlsched run -N 2 -G 2 -l echo on")
    assert "the job asked for 2 nodes, and has 1" in done.stdout


def test_job_has_the_umask_of_its_submitter(place: Place) -> None:
    done = place.type("umask 027; rlsched run --export=NONE -- sh -c umask")
    assert done.stdout == "0027\n", done.stderr


def test_partition_without_nodes_is_a_label(place: Place) -> None:
    done = place.type("rlsched submit --parsable -p nosuch --wrap true")
    assert (done.returncode, done.stderr) == (0, "")
    assert place.client.job(int(done.stdout)).vc == "nosuch"
    place.clear()


def test_exclusive_job_has_its_node_to_itself(place: Place) -> None:
    """Two nodes of 2 GPUs: one GPU of the first job's node stays empty."""
    script = place.folder / "whole.sh"
    script.write_text("#!/bin/bash\n#SBATCH --exclusive -G 1\nsleep 600\n", encoding="utf-8")
    done = place.type("rlsched submit --parsable whole.sh; rlsched submit -G 1 --parsable --wrap 'sleep 600'")
    assert done.stderr == ""
    whole, other = (int(line) for line in done.stdout.split())
    until(lambda: all(job.state == "running" for job in place.client.jobs()), "both run")
    (first,), (second,) = (place.client.job(job).nodes for job in (whole, other))
    assert first != second
    waits = int(place.type("rlsched submit --parsable whole.sh").stdout)
    until(lambda: "waits for 1 whole node" in place.client.job(waits).reason, "the reason is known")
    assert {node.name: node.free_gpus for node in place.client.nodes()} == {first: 0, second: 1}
    place.client.cancel(other)
    until(lambda: place.client.job(waits).nodes == [second], "it runs on the other node")
    place.clear()


def test_interrupt_cancels_the_job_and_shows_its_last_output(place: Place) -> None:
    """The state line is the last one. A second interrupt does not wait for the end of the job."""
    env = os.environ | {"RLSCHED_HOME": str(place.home), "RLSCHED_BROKER": place.address}
    script = "trap 'while [ ! -e go ]; do sleep 0.1; done; echo saved; exit 9' TERM; echo on; " + (
        "while :; do sleep 0.1; done"
    )
    for interrupts in (1, 2):
        with subprocess.Popen(
            [sys.executable, "-m", "rlsched", "run", "--", "bash", "-c", script],
            cwd=place.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"on\n"
            process.send_signal(signal.SIGINT)
            while b"cancelling" not in process.stderr.readline():
                pass
            if interrupts == 1:
                (place.folder / "go").touch()
                assert b"saved" in process.stdout.read()
                assert re.fullmatch(rb"job \d+ cancelled: .*\n", process.stderr.read())
                assert not place.client.jobs()
                (place.folder / "go").unlink()
            else:
                process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
    (job,) = place.client.jobs()
    assert job.state == "running"
    (place.folder / "go").touch()
    until(lambda: not place.client.jobs(), "it has ended")
    assert [job.state for job in place.client.jobs(finished=True)[-2:]] == ["cancelled"] * 2
