"""The GPU profile on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROFILE = ["-m", "studies.gpu.profile_catalogue"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="gpu: no NVIDIA driver here"),
]


def test_one_minute_measures_rows_of_this_gpu(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "node_daemon"))
    done = subprocess.run(
        [sys.executable, *PROFILE, "--budget-s", "60", "--seconds", "3", "--out", tmp_path],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "rows.json").read_text())
    assert not results["host"]["is_rehearsal"]
    rows = {(row["workload"], row["field"]): row for row in results["rows"]}
    assert {row["status"] for row in results["rows"]} <= {"measured", "fitted"}
    alone = [key for key in rows if key[1] == "samples_per_s"]
    assert len(alone) >= 3, results["skipped"]
    for workload, _ in alone:
        assert rows[workload, "samples_per_s"]["value"] > 0
        assert 0 <= rows[workload, "util_frac"]["value"] <= 1
        assert rows[workload, "memory_mib"]["value"] > 0
    assert rows["", "idle_w"]["value"] <= rows["", "static_w"]["value"] * 1.1
    busiest = max(alone, key=lambda key: rows[key[0], "util_frac"]["value"])[0]
    assert rows[busiest, "dynamic_w"]["value"] > 0
    assert results["skipped"], "a minute is not enough for everything, and the omitted parts are named"
