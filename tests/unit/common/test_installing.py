"""The command that installs an extra: for a checkout, and for other installations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlsched.installing import install_command


@pytest.fixture(autouse=True)
def pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell finds the pip of this Python."""
    monkeypatch.setattr("rlsched.installing._pip", lambda: "pip")


def test_checkout_keeps_its_pins_and_stays_editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert install_command("report", tmp_path) == "pip install -c constraints.txt -e '.[report]'"
    monkeypatch.chdir(tmp_path.parent)
    pins, package = tmp_path / "constraints.txt", f"'{tmp_path}[report]'"
    assert install_command("report", tmp_path) == f"pip install -c {pins} -e {package}"


def test_other_installations_use_the_distribution(tmp_path: Path) -> None:
    assert install_command("broker,node", tmp_path) == "pip install 'rlsched[broker,node]'"


def test_pip_of_another_python_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "pip").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert install_command("report", tmp_path) == ".venv/bin/pip install 'rlsched[report]'"
    monkeypatch.setenv("PATH", str(folder))
    assert install_command("report", tmp_path) == "pip install 'rlsched[report]'"
