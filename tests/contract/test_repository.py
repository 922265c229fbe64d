"""The repository keeps its own promises: one-line Makefile targets, pins without hosts, verbs that load."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_make_verb_is_one_line() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    verbs = {line.partition(":")[0] for line in lines if re.match(r"[a-z-]+:", line)}
    assert verbs >= {"install", "lint", "type", "test", "test-studies", "cov", "bench", "demo", "clean"}
    assert "checkpoint" in verbs
    assert not any(line.startswith("\t") for line in lines)


def test_constraints_pin_versions_and_name_no_host() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert "torch==2.13.0" in lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9A-Za-z.]+", line), line


def test_node_installs_neither_torch_nor_numba() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = " ".join(project["dependencies"] + project["optional-dependencies"]["node"])
    assert not re.search(r"torch|numba|stable-baselines3|sb3|gymnasium|tensorboard", wanted)


@pytest.mark.parametrize("point", entry_points(group="rlsched.commands"), ids=lambda point: point.name)
def test_every_verb_loads(point: object) -> None:
    command = point.load()  # type: ignore[attr-defined]
    assert isinstance(command, click.Command)
    assert command.name == point.name  # type: ignore[attr-defined]


def test_studies_are_not_imported() -> None:
    """Studies may import everything, and product, tests and benchmarks must not import studies."""
    folders = ("rlsched", "envs", "agents", "node_daemon", "tests", "benchmarks")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 200
    taken = re.compile(r"^\s*(from|import) studies\b|import_module\(.studies\b", re.M)
    assert [path.name for path in modules if taken.search(path.read_text(encoding="utf-8"))] == []


def test_no_conflict_markers() -> None:
    texts = [
        path
        for folder in ("docs", "rlsched", "envs", "agents", "node_daemon", "studies")
        for path in (ROOT / folder).rglob("*")
    ]
    texts += ROOT.glob("*.md")
    kept = [path for path in texts if path.suffix in (".md", ".py", ".toml")]
    assert len(kept) > 200
    marked = [
        path.name for path in kept if re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.M)
    ]
    assert marked == []
