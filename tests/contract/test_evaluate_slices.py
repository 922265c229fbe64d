"""`rlsched evaluate --models` on a cluster with MIG slices, and refused cluster files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import ClusterSpecError
from rlsched.workload.trace import Trace

CLUSTER = """name = "cut"

[[nodes]]
gpus = 2
gpu_type = "A100-40GB"
cpus = 64
mig = ["3g.20gb", "3g.20gb"]

[[nodes]]
gpus = 2
gpu_type = "A100-40GB"
cpus = 64
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sixty jobs of one and two GPUs, and a cluster of two whole A100 and two cut into slices."""
    rng, count = np.random.default_rng(1), 60
    folder = tmp_path_factory.mktemp("cut")
    Trace.from_columns(
        name="w",
        submit_s=np.sort(rng.integers(0, 20_000, count)).astype(np.float64),
        duration_s=rng.integers(100, 3000, count).astype(np.float64),
        num_gpus=rng.choice([1.0, 1.0, 1.0, 2.0], count),
    ).write(folder / "w.csv")
    (folder / "c.toml").write_text(CLUSTER, encoding="utf-8")
    return folder / "w.csv", folder / "c.toml"


def run(files: tuple[Path, Path], *words: str) -> Result:
    from rlsched_agents.cli import evaluate

    return CliRunner().invoke(evaluate, ["--trace", str(files[0]), "--cluster", str(files[1]), *words])


def test_evaluation_on_slices(files: tuple[Path, Path], tmp_path: Path) -> None:
    weighed = ["--set", "share={}", "--set", 'clock={rule="weighed",energy_weight=0.5}']
    flags = ["--models", "--policy", "fifo-backfill", "--policy", "qssf-backfill", *weighed]
    result = run(files, *flags, "--json", str(tmp_path / "o.json"), "--jobs-out", str(tmp_path))
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "w on 2 nodes, 6 GPUs of which 4 are MIG slices of 2 (cut)" in result.output
    report = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert (report["gpus"], report["mig_slices"], report["devices"]) == (6, 4, 4)
    for figures in report["policies"].values():
        assert figures["rejected"] == figures["unfinished"] == 0
        assert 0.0 < figures["measured_cells_frac"] < 0.3
    with (tmp_path / "fifo-backfill.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    duration_s = dict(zip(*(column.tolist() for column in _durations(files[0])), strict=True))
    on_slices = [row for row in rows if row["node"] == "n0"]
    assert len(on_slices) > 5
    for row in on_slices:
        assert row["gpus"] in "0123"
        assert float(row["sm_clock_frac"]) == 1.0
        assert float(row["end_time"]) - float(row["start_time"]) > duration_s[row["job_id"]]


def _durations(path: Path) -> tuple[Any, Any]:
    trace = Trace.read(path)
    return trace.job_id, trace.duration_s


def test_policy_gives_slices_the_full_clock(files: tuple[Path, Path], tmp_path: Path) -> None:
    """With a weight of energy it lowers clocks, but only of whole GPUs."""
    (tmp_path / "models.toml").write_text("energy_weight = 0.9\n", encoding="utf-8")
    flags = ["--models", str(tmp_path / "models.toml"), "--policy", "ppo"]
    result = run(files, *flags, "--jobs-out", str(tmp_path))
    assert result.exit_code == 0, result.output + repr(result.exception)
    with (tmp_path / "ppo.csv").open(newline="", encoding="utf-8") as file:
        clocks = [(row["node"], float(row["sm_clock_frac"])) for row in csv.DictReader(file)]
    assert {clock for node, clock in clocks if node == "n0"} == {1.0}
    assert min(clock for node, clock in clocks if node == "n1") < 1.0


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (
            '["3g.20gb", "3g.20gb"]',
            '["5g.20gb"]',
            "mig: expected slices of A100-40GB (1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb), got '5g.20gb'",
        ),
        (
            '["3g.20gb", "3g.20gb"]',
            '["4g.20gb", "4g.20gb"]',
            "mig: 2 slices 4g.20gb cannot be made on one GPU at once, 1 can",
        ),
        (
            '["3g.20gb", "3g.20gb"]',
            '["4g.20gb", "3g.20gb"]',
            "mig: expected slices of one size on a node, got 4g.20gb, 3g.20gb; "
            "give nodes of each size a [[nodes]] of their own",
        ),
        (
            'gpu_type = "A100-40GB"\ncpus = 64\nmig',
            'gpu_type = "V100"\nmig',
            "mig: no slices are known for GPU type 'V100'; "
            "they are known for A100-40GB, A100-80GB, H100-80GB, H200-141GB",
        ),
        (
            'gpus = 2\ngpu_type = "A100-40GB"\ncpus = 64\nmig',
            'gpus = 33\ngpu_type = "A100-40GB"\nmig',
            "gpus must be 0 to 64, got 66 (33 in 2 slices each)",
        ),
        (
            'gpu_type = "A100-40GB"\ncpus = 64\nmig = ["3g.20gb", "3g.20gb"]',
            'gpu_type = "A100-40GB/3g.20gb"',
            "gpu_type 'A100-40GB/3g.20gb' is a MIG slice; give gpu_type 'A100-40GB', "
            'the GPUs in the machine, and mig, the slices of each: ["3g.20gb", ...]',
        ),
    ],
)
def test_invalid_cluster_file(was: str, now: str, words: str, tmp_path: Path) -> None:
    """One line with expected value, actual value and place."""
    assert CLUSTER.count(was) == 1
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER.replace(was, now), encoding="utf-8")
    with pytest.raises(ClusterSpecError) as caught:
        ClusterSpec.read(path)
    assert str(caught.value) == f"{path}: nodes[0]: {words}"


def test_description_with_slices_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER, encoding="utf-8")
    spec = ClusterSpec.read(tmp_path / "c.toml")
    assert (spec.num_gpus, spec.num_slices, spec.num_devices) == (6, 4, 4)
    assert [(node.gpus, node.gpu_type, node.devices) for node in spec.expand()] == [
        (4, "A100-40GB/3g.20gb", 2),
        (2, "A100-40GB", 2),
    ]
    assert 'mig = ["3g.20gb", "3g.20gb"]' in spec.to_toml()
    (tmp_path / "again.toml").write_text(spec.to_toml(), encoding="utf-8")
    assert ClusterSpec.read(tmp_path / "again.toml") == spec


def test_slices_is_no_key_of_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER.replace("mig = ", "slices = 2 # "), encoding="utf-8")
    with pytest.raises(ClusterSpecError, match="unknown field `slices`"):
        ClusterSpec.read(path)
