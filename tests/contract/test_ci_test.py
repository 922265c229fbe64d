"""`.ci/test`: which failures count, and the report of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FLAKY = """
from pathlib import Path
def test_flaky():
    first = Path("first")
    if not first.exists():
        first.touch()
        raise AssertionError("the first time")
"""
BROKEN = """
def test_broken():
    assert False
"""


@pytest.mark.parametrize(
    ("tests", "code", "flaky"),
    [
        ("", 0, False),
        (FLAKY, 0, True),
        (FLAKY + BROKEN, 1, True),
        (BROKEN, 1, False),
        ("import no_such", 2, False),
    ],
)
def test_repeated_failure_counts(tmp_path: Path, tests: str, code: int, flaky: bool) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(tests + "\ndef test_sound():\n    pass\n")
    runner = tmp_path / "pytest"
    runner.write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest -p no:hypothesispytest "$@"\n')
    runner.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci/test", "-n", "0"],
        env={**os.environ, "CI_TEST_DIR": str(tmp_path), "PYTEST": str(runner)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if line.startswith("flaky: ")]
    flaky_line = "flaky: failed, and passed when run again alone: test_it.py::test_flaky"  # prose: quoted
    assert named == [flaky_line] * flaky
