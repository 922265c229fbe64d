"""The measured workloads: names, batch sizes and sizes of the networks. Imports no torch.

All inputs are synthetic. Each has a full size for measurements, and a small one for rehearsals and
tests on a CPU.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from rlsched.errors import InputError
from studies.gpu.protocol import Job

Feed = Literal["images", "tokens", ""]

HELD: Final = "held"
"""Not a workload: a process that holds a CUDA context and runs nothing."""


class Workload(NamedTuple):
    """One training workload.

    Attributes:
        batches: Two batch sizes: the second, larger one is measured first.
        small_batches: The two batch sizes in a rehearsal.
        sample, what: Names of a sample, and of the workload in one line.
        feed: Output of its input pipeline on CPU cores; empty: no measured pipeline.
    """

    batches: tuple[int, int]
    small_batches: tuple[int, int]
    sample: str
    feed: Feed
    what: str


WORKLOADS: Final[dict[str, Workload]] = {
    "cnn_small": Workload((64, 256), (4, 8), "image", "images", "three-stage residual CNN, 32 x 32 pixels"),
    "cnn_large": Workload((32, 128), (2, 4), "image", "images", "ResNet-50, 224 x 224 pixels"),
    "lstm": Workload((32, 128), (4, 8), "sequence", "tokens", "two-layer LSTM, 1024 wide, 64 tokens"),
    "encoder": Workload(
        (16, 64), (2, 4), "sequence", "tokens", "transformer of BERT-base's size, 128 tokens"
    ),
    "decoder": Workload((4, 16), (2, 4), "sequence", "", "causal transformer of GPT-2's size, 512 tokens"),
    "recommender": Workload((2048, 16384), (16, 64), "table row", "", "MLP over 26 embedding tables"),
    "graph": Workload((16, 128), (2, 4), "graph", "", "GraphSAGE, 1,000 nodes and 10,000 edges each"),
    "ppo": Workload((64, 1024), (4, 8), "environment step", "", "PPO on cart-poles stepped on the CPU"),
}


def jobs_of(position: int, *, is_small: bool) -> list[Job]:
    """Every workload at its first (0) or second (1) batch size."""
    return [
        Job(name, (one.small_batches if is_small else one.batches)[position])
        for name, one in WORKLOADS.items()
    ]


def workload_of(name: str) -> Workload:
    """Look a workload up.

    Raises:
        InputError: the name is unknown; the error names the known workloads.
    """
    if name not in WORKLOADS:
        raise InputError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
