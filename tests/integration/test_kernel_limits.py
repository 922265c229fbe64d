"""Limits of jobs on a kernel whose control groups have controllers."""

from __future__ import annotations

import pytest

from tests.soak.control_groups import lacking, run_tests

pytestmark = pytest.mark.slow


@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_the_kernel_enforces_limits_of_memory_and_processes() -> None:
    code, output = run_tests(["tests/integration/test_node_limits.py"], timeout_s=600.0)
    assert code == 0, output
    assert "controllers: cpu io memory pids" in output
    assert "the groups here have no controller" not in output
