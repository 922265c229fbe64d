"""`rlsched submit --output` and `--error` on a live cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.online.cluster import until
from tests.support.online.shell import Place

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("output"))
    yield place
    place.stop()


def submitted(place: Place, line: str) -> int:
    done = place.type(f"rlsched submit --parsable {line}")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return int(done.stdout)


def wait(place: Place, job: int) -> None:
    until(lambda: place.client.job(job).state in ("completed", "failed"), "it has ended")


def test_files_are_complete_when_the_job_has_ended(place: Place) -> None:
    script = place.folder / "files.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -J files -o %x-%j.out\n#SBATCH --error=%x-%j.err\nseq 20000\necho no >&2\n",
        encoding="utf-8",
    )
    job = submitted(place, "files.sh")
    wait(place, job)
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    assert (place.folder / f"files-{job}.out").read_text() == expected
    assert (place.folder / f"files-{job}.err").read_text() == "no\n"
    assert set(place.type(f"rlsched logs {job}").stdout.splitlines()) == {*expected.split(), "no"}


def test_each_task_of_an_array_has_its_file(place: Place) -> None:
    array = submitted(place, "-a 1-3 -o task-%A-%a.txt --wrap 'echo $RLSCHED_ARRAY_TASK'")
    until(lambda: not place.client.jobs(), "all tasks have ended")
    found = {path.name: path.read_text() for path in place.folder.glob("task-*.txt")}
    assert found == {f"task-{array}-{task}.txt": f"{task}\n" for task in (1, 2, 3)}


def test_requeued_job_continues_its_file(place: Place) -> None:
    file = place.folder / "again.txt"
    file.write_text("of an earlier job\n")
    words = "echo $RLSCHED_ATTEMPT; until [ $RLSCHED_ATTEMPT = 2 ]; do sleep 0.01; done"
    job = submitted(place, f"-o again.txt --wrap '{words}'")
    until(lambda: file.read_text() == "1\n", "the first attempt has written")
    assert place.type(f"rlsched requeue {job}").returncode == 0
    wait(place, job)
    lines = [line for line in file.read_text().splitlines() if not line.startswith("rlsched: ")]
    assert lines == ["1", "2"]


def test_gang_shares_a_file_unless_the_pattern_names_the_rank(place: Place) -> None:
    wrap = "--launch none --wrap 'echo rank $RLSCHED_RANK'"
    job = submitted(place, f"-N 2 --gpus-per-node 2 -o gang.txt -e gang-%N-%n.err {wrap}")
    wait(place, job)
    assert sorted((place.folder / "gang.txt").read_text().splitlines()) == ["rank 0", "rank 1"]
    assert len(list(place.folder.glob("gang-*-[01].err"))) == 2


def test_file_that_cannot_be_written_does_not_fail_the_job(place: Place) -> None:
    job = submitted(place, "-o /proc/none.txt --wrap 'echo on'")
    wait(place, job)
    assert place.client.job(job).exit_code == 0
    lines = place.type(f"rlsched logs {job}").stdout.splitlines()
    line = "--output /proc/none.txt: No such file or directory: the output is only in `rlsched logs`"
    assert sorted(lines) == ["on", f"rlsched: {line}"]
    said = place.type(f"rlsched why {job}").stdout
    assert "does not write its output to a file: --output /proc/none.txt: No such file or directory" in said


def test_unknown_pattern_is_refused(place: Place) -> None:
    done = place.type("rlsched submit -o %q.txt true")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "output: expected %% or % with one of A a j N n t u x, got '%q'" in line
