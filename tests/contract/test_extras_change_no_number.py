"""A command gives the same numbers with any extras, or prints which extra to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlsched.cli.main import run
from rlsched.workload.synth import synthesize

HIDDEN = ("sklearn", "scipy", "matplotlib", "tensorboard", "torch", "pyarrow")
BLOCKED = f"""
import shlex, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {HIDDEN!r} else find(name, *rest)
from rlsched.cli.main import run
print("codes", *(run(shlex.split(line)) for line in sys.stdin))
"""


def evaluate(folder: Path, trace: str, out: str, *more: str) -> list[str]:
    files = {"--trace": f"{trace}.csv", "--cluster": "c.toml", "--json": out}
    paths = [word for option, name in files.items() for word in (option, str(folder / name))]
    return ["evaluate", *paths, "--policy", "fifo-backfill", "--policy", "easy", *more]


def numbers(path: Path) -> dict[str, Any]:
    """The report, without run times."""
    report: dict[str, Any] = json.loads(path.read_text())
    for one in report["policies"].values():
        del one["wall_s"]
    return report


def test_without_extras_numbers_are_the_same_or_refused(tmp_path: Path) -> None:
    named, cluster = synthesize("helios", 250, 0.9, 32, seed=1, habit=0.8)
    predicted, _ = synthesize("helios", 250, 0.9, 32, seed=1, predictability=1.0)
    named.write(tmp_path / "named.csv")
    predicted.write(tmp_path / "predicted.csv")
    cluster.write(tmp_path / "c.toml")
    runs = {
        "own.json": ("predicted",),
        "mean.json": ("named", "--prediction", "running-mean"),
        "default.json": ("named",),
    }
    blocked = "\n".join(
        " ".join(evaluate(tmp_path, trace, f"blocked-{out}", *more)) for out, (trace, *more) in runs.items()
    )
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], input=blocked, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "codes 0 0 2", done.stderr
    (refused,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "needs scikit-learn" in refused
    assert "[predict]" in refused
    assert "--prediction running-mean" in refused
    for out, (trace, *more) in runs.items():
        assert run(evaluate(tmp_path, trace, out, *more)) == 0
        if out != "default.json":
            assert numbers(tmp_path / out) == numbers(tmp_path / f"blocked-{out}")
    default, mean, own = (numbers(tmp_path / f"{name}.json") for name in ("default", "mean", "own"))
    assert default["predicted_by"].startswith("Predicted run times: hedge (--prediction)")
    assert mean["predicted_by"].startswith("Predicted run times: running-mean (--prediction)")
    assert own["predicted_by"] == "Predicted run times: the trace's own."
