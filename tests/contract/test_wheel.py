"""The built packages: contents, requirements, and an installed wheel that finds its own policy."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
POLICY = ROOT / "checkpoints" / "default" / "policy.json"
INSIDE = (
    "rlsched/cli/main.py",
    "rlsched/report/page.css",
    "rlsched/models/catalogue/cells.csv",
    "rlsched_envs/sim/engine.py",
    "rlsched_agents/dials/ppo.py",
    "rlsched_node/processes/shim.py",
    "rlsched_node/slurm/bin/srun",
)
FIND = "from rlsched.decide.dials.strategy import default_checkpoint as find; print(find() / 'policy.json')"
LOAD = "from rlsched.decide.registry import load_scheduler as load; print(load('ppo').policy_id)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("build") and find_spec("hatchling")), reason="needs build and hatchling"
    ),
]


class Built(NamedTuple):
    """Output of `python -m build`: an sdist, and the wheel from that sdist."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, without this process's import path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment: the wheel, followed by this environment's other packages."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install",
        "--no-deps", "--no-index", built.wheel, cwd=folder)  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    # Only a path line: the .pth files in that folder, including the editable install, are not read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def requirements(built: Built) -> list[Requirement]:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def test_wheel_holds_only_the_four_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert {*INSIDE, *(f"{name.partition('/')[0]}/py.typed" for name in INSIDE)} <= set(names)
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {
        "rlsched", "rlsched_envs", "rlsched_agents", "rlsched_node",
    }  # fmt: skip
    assert "rlsched/_checkpoints/default/policy.json" in names


def test_programs_of_a_job_are_executable(installed: Path) -> None:
    (program,) = installed.parents[1].glob("lib/python*/site-packages/rlsched_node/slurm/bin/scontrol")
    assert run(program, "show", "hostnames", "n[1-2]", cwd=installed.parent) == "n1\nn2\n"


def test_sdist_holds_sources_tests_and_documents(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    folders = {"envs/": "rlsched_envs", "agents/": "rlsched_agents", "node_daemon/": "rlsched_node"}
    sources = {next((home + name for home, package in folders.items() if name.startswith(package)), name)
               for name in INSIDE}  # fmt: skip
    assert sources <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py"} <= names
    assert "checkpoints/default/policy.json" in names
    assert not any(name.startswith((".venv", "runs/")) for name in names)


def test_node_requires_neither_torch_nor_numba(built: Built) -> None:
    asked = {one.name for one in requirements(built)
             if one.marker is None or one.marker.evaluate({"extra": "node"})}  # fmt: skip
    assert {"numpy", "msgspec", "pyzmq", "nvidia-ml-py"} <= asked
    heavy = {"torch", "numba", "stable-baselines3", "gymnasium", "tensorboard", "pyarrow"}
    assert not asked & heavy


def test_training_requires_its_imports(built: Built) -> None:
    asked = {one.name for one in requirements(built)
             if one.marker is not None and one.marker.evaluate({"extra": "train"})}  # fmt: skip
    assert {"torch", "numba", "stable-baselines3", "gymnasium"} <= asked


def test_installed_wheel_has_the_command_and_all_verbs(installed: Path, tmp_path: Path) -> None:
    command = installed.with_name("rlsched")
    assert run(command, "--version", cwd=tmp_path).startswith("rlsched ")
    page = run(command, "--help", cwd=tmp_path)
    assert "evaluate" in page
    assert "From other packages" not in page
    assert "broker" in run(command, "node", "--help", cwd=tmp_path)
    where = run(installed, "-c", "import rlsched; print(rlsched.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.parent)


def test_installed_wheel_finds_its_policy(installed: Path, tmp_path: Path) -> None:
    found = Path(run(installed, "-c", FIND, cwd=tmp_path).strip())
    assert found.is_relative_to(installed.parent.parent)
    assert found.read_bytes() == POLICY.read_bytes()
    assert run(installed, "-c", LOAD, cwd=tmp_path).strip()


def test_editable_install_finds_the_policy_in_the_tree(tmp_path: Path) -> None:
    found = run(sys.executable, "-c", FIND, cwd=tmp_path).strip()
    assert Path(found) == POLICY
    assert run(sys.executable, "-c", LOAD, cwd=tmp_path).strip()
