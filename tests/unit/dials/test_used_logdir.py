"""A folder of an earlier training: refused in one line, or cleared of the files of trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.errors import InputError
from rlsched_agents.cli.used_logdir import check_logdir, clear

LEFT = (
    "training.json",
    "events.out.tfevents.1700000000.here",
    "last.toml",
    "last.json",
    "ppo.npz",
)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    for name in (*LEFT, "notes.md", "other/last.toml"):
        path = tmp_path / "log" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    return tmp_path / "log"


@pytest.mark.parametrize("name", LEFT)
def test_files_of_a_training_are_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(
        InputError, match=rf"an earlier training is here \({name}\); --resume continues it"
    ) as found:
        check_logdir(tmp_path, resume=False, overwrite=False)
    assert "\n" not in str(found.value)
    check_logdir(tmp_path, resume=True, overwrite=False)
    check_logdir(tmp_path, resume=False, overwrite=True)
    with pytest.raises(InputError, match="not both"):
        check_logdir(tmp_path, resume=True, overwrite=True)


def test_folder_with_other_files_is_free(tmp_path: Path) -> None:
    check_logdir(tmp_path / "none", resume=False, overwrite=False)
    (tmp_path / "notes.md").write_text("mine")
    check_logdir(tmp_path, resume=False, overwrite=False)


def test_other_files_in_the_folder_stay(used: Path) -> None:
    clear(used)
    assert sorted(str(path.relative_to(used)) for path in used.rglob("*") if path.is_file()) == [
        "notes.md",
        "other/last.toml",
    ]
    check_logdir(used, resume=False, overwrite=False)


@pytest.mark.parametrize("out", ["mine", "mine.toml"])
def test_used_folder_is_refused_before_anything_else(
    out: str, used: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_text() for path in used.rglob("*") if path.is_file()}
    words = ["train", "--synthetic", "helios", "--logdir", str(used), "--out", str(used.parent / out)]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "an earlier training is here" in said
    assert "--resume continues it" in said
    assert "--overwrite" in said
    assert {path: path.read_text() for path in used.rglob("*") if path.is_file()} == before
    assert not (used.parent / out).exists()
