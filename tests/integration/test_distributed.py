"""Training on two nodes: one process per GPU, started by torchrun and by rlsched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.online.shell import Place

pytest.importorskip("torch", reason="needs the extra `train`")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "distributed"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("distributed"))
    yield place
    place.stop()


def trains_in_four_processes(place: Place, command: str) -> str:
    """Check that this job fits the line of the examples, and one process prints the result. Its output."""
    done = place.type(command)
    assert done.returncode == 0, done.stderr + done.stdout
    ((first, last),) = re.findall(r"4 processes, loss (\d\.\d+) to (\d\.\d+)", done.stdout)
    assert float(last) < float(first) / 10.0
    return done.stdout


@pytest.mark.parametrize(
    (
        "package",
        "launch",
    ),  # Accelerate and the script for Slurm: below
    [
        pytest.param("torch", "per-gpu -- PYTHON", marks=pytest.mark.soak),
        ("lightning", "torchrun"),
    ],
)
def test_example_trains_on_two_nodes(place: Place, package: str, launch: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    script = EXAMPLES / f"with_{package}.py"
    trains_in_four_processes(
        place, f"rlsched run --gpus 4 --launch {launch} {script}".replace("PYTHON", place.python)
    )


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs the package accelerate")
def test_documented_line_for_accelerate_trains_on_two_nodes(place: Place) -> None:
    page = (ROOT / "docs" / "how-to" / "distributed.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"(?s)^rlsched submit --gpus 16 -- sh -c 'accelerate.*?'$", page, re.MULTILINE)
    line = line.replace("submit", "run").replace("train.py", str(EXAMPLES / "with_accelerate.py"))
    trains_in_four_processes(place, line.replace("16", "4"))


@pytest.mark.parametrize(
    ("script", "package"),
    [
        pytest.param("slurm_torchrun.sh", "torch", marks=pytest.mark.soak),
        ("slurm_srun.sh", "torch"),
        ("slurm_lightning.sh", "lightning"),
        pytest.param("slurm_accelerate.sh", "accelerate", marks=pytest.mark.soak),
    ],
)
def test_script_for_slurm_trains_on_two_nodes(place: Place, script: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    trains_in_four_processes(place, f"cd {ROOT}; rlsched run {EXAMPLES / script}")  # srun SCRIPT


def test_script_for_slurm_can_run_on_each_node(place: Place) -> None:
    """Two torchruns find each other by Slurm's variables; that their processes train is tested above."""
    script = place.folder / "slurm.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=line\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=2\n#SBATCH --time=00:10:00\n\n"
        "cd $SLURM_SUBMIT_DIR\n"
        'echo "job $SLURM_JOB_ID $SLURM_JOB_NAME on $SLURMD_NODENAME of $SLURM_JOB_NODELIST"\n'
        "torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE --node-rank=$SLURM_NODEID \\\n"
        "    --master-addr=$SLURM_LAUNCH_NODE_IPADDR --master-port=$((30000 + SLURM_JOB_ID % 1000)) \\\n"
        "    --no-python sh -c 'echo process $RANK of $WORLD_SIZE'\n",
        encoding="utf-8",
    )
    done = place.type("rlsched run --launch none slurm.sh")
    assert done.returncode == 0, done.stderr + done.stdout
    assert sorted(re.findall(r"process \d of \d", done.stdout)) == [f"process {k} of 4" for k in range(4)]
    shown = sorted(re.findall(r"(\d: job \d+ line on .*)", done.stdout))
    lines = [re.sub(r"job \d+", "job", line) for line in shown]
    orders = (("n0", "n1"), ("n1", "n0"))  # the placement chooses the node of rank 0
    assert lines in [
        [f"{rank}: job line on {node} of {','.join(order)}" for rank, node in enumerate(order)]
        for order in orders
    ]


BUSY = """\
import time
from torch import distributed
import torch
distributed.init_process_group("gloo")
ends_s = time.monotonic() + 25.0
x, is_over = torch.rand(64, 64), torch.zeros(1)
while not is_over.item():
    distributed.all_reduce(x @ x)
    time.sleep(0.05)
    is_over.fill_(time.monotonic() > ends_s)
    distributed.all_reduce(is_over)
distributed.destroy_process_group()
"""
"""All processes leave the loop in the same round: a process that left it earlier would fail the others."""


def test_profile_of_a_torch_job_on_two_nodes_is_learnt(place: Place) -> None:
    (place.folder / "busy.py").write_text(BUSY, encoding="utf-8")
    done = place.type("rlsched run --gpus 4 --launch torchrun busy.py")
    assert done.returncode == 0, done.stderr + done.stdout
    job = place.client.submit(["busy.py"], num_gpus=4, launcher="torchrun", hold=True, cwd=str(place.folder))
    said = place.type(f"rlsched why {job}").stdout
    place.client.cancel(job)
    found = re.search(
        r"by an earlier attempt of the same command on .* it was expected to use: "
        r".*cores a GPU (\d\.\d), memory (\d+) MiB",
        " ".join(said.split()),
    )
    assert found is not None, said
    assert 0.0 < float(found[1]) < 1.5
    assert 50 < int(found[2]) < 2_000


def test_failed_process_ends_the_others_and_sets_the_exit_code(place: Place) -> None:
    script = place.folder / "fails.sh"
    script.write_text("#!/bin/sh\n[ $RANK = 1 ] && exit 7\nexec sleep 600\n", encoding="utf-8")
    done = place.type("rlsched run --gpus 2 --launch per-gpu fails.sh")
    assert done.returncode == 7, done.stderr


def test_each_process_receives_a_signal(place: Place) -> None:
    script = place.folder / "ends.sh"
    script.write_text("#!/bin/sh\ntrap 'echo $RANK ends; exit 0' TERM\nsleep 600 & wait\n", encoding="utf-8")
    job = place.client.submit(
        ["sh", str(script)], num_gpus=2, launcher="per-gpu", time_limit_s=2.0, cwd=str(place.folder)
    )
    assert place.client.wait(job).exit_code == 124  # at the time limit
    output = b"".join(place.client.log(job)).decode().split("\n")
    assert {"0 ends", "1 ends"} <= set(output)


def test_missing_program_is_reported(place: Place) -> None:
    done = place.type("rlsched run --gpus 2 --launch per-gpu -- no-such-program")
    assert done.returncode == 127
    assert "no-such-program: No such file or directory" in done.stdout + done.stderr
