"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.files.atomic import replace_file


def test_a_file_has_its_new_contents_and_nothing_is_left(tmp_path: Path) -> None:
    for data in (b"old", b"new"):
        replace_file(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
        assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_after_an_error_the_old_file_stays_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "inside").write_bytes(b"old")
    with pytest.raises(OSError):
        replace_file(folder, b"new")
    assert (folder / "inside").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing" / "f", b"new")
