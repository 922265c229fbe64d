"""A history is read in any known form, and missing parts are reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.training_data import TrainingData, read_data
from rlsched_agents.whatif.job_history import JobHistory

HEAD = "JobID|Partition|State|Submit|Start|End|AllocTRES"
CLUSTER = 'name = "c"\n[[nodes]]\ncount = 2\ngpus = 8\n'


def sacct(path: Path, jobs: int, gpus: int = 1) -> Path:
    """A history of Slurm, one job an hour, and a step that is no job."""
    tres = f"cpu=4,gres/gpu={gpus}" if gpus else "cpu=4"
    lines = [HEAD, f"1.batch|p|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:10:00|{tres}"]
    for number in range(jobs):
        day, hour = divmod(number, 24)
        at = f"2024-01-{day + 1:02}T{hour:02}:"
        lines.append(f"{number + 1}|p|COMPLETED|{at}00:00|{at}01:00|{at}31:00|{tres}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_slurm_output_is_read_directly(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    found = JobHistory.read(sacct(tmp_path / "sacct.csv", 48), tmp_path / "c.toml")
    assert (found.format, len(found.trace), found.skipped, found.cluster.num_gpus) == ("sacct", 48, 1, 16)


def test_normal_form_is_a_history_too(tmp_path: Path) -> None:
    trace, cluster = synthesize("helios", 300, 0.9, 64, seed=1)
    trace.write(tmp_path / "t.csv.gz")
    cluster.write(tmp_path / "c.toml")
    assert len(JobHistory.read(tmp_path / "t.csv.gz", tmp_path / "c.toml").trace) == 300


def test_last_fifth_of_a_history_is_for_confirmation(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    said: list[str] = []
    (mine,) = read_data([], [tmp_path / "c.toml"], [sacct(tmp_path / "s.txt", 500)], tell=said.append)
    file = tmp_path / "s.txt"
    assert said == [f"{file}: reading", f"{file}: 500 jobs from sacct, 1 rows skipped; 16 GPUs"]
    parts = (mine.train, mine.validation[0], mine.confirmation[0])
    assert [one.submit_s.size for one in parts] == [350, 50, 100]
    assert parts[0].submit_s[-1] < parts[1].submit_s[0] <= parts[1].submit_s[-1] < parts[2].submit_s[0]
    other = JobHistory.read(tmp_path / "s.txt", tmp_path / "c.toml")
    trace = TrainingData.cut(other.trace, other.cluster)
    assert trace.uses[0].test_s[0] >= trace.uses[0].validation_s[1] > 0, "a trace keeps its last fifth apart"
    early = other.trace.select(other.trace.submit_s < mine.uses[0].train_s[1])
    alone = TrainingData.cut(early, other.cluster, own=True).train.predictions.predicted_s
    known = mine.train.predictions.predicted_s[: alone.size]
    assert (known == alone).all(), "predictions use no later jobs"


@pytest.mark.parametrize(
    ("content", "cluster", "said"),
    [
        (None, True, "no job of this history has GPUs (jobs: 48): expected gres/gpu in AllocTRES or ReqTRES"),
        ("", False, "sacct does not describe nodes; write a cluster file"),
        ("some words\n", True, "looks like none of the known formats"),
    ],
)
def test_errors_are_one_line(content: str | None, cluster: bool, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    path = sacct(tmp_path / "h.txt", 48, 0 if content is None else 1)
    if content:
        path.write_text(content)
    with pytest.raises(InputError, match=r"h\.txt: ") as error:
        JobHistory.read(path, tmp_path / "c.toml" if cluster else None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
