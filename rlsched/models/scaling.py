"""Speed on several GPUs, on several nodes and on different GPU types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rlsched.compile.jit import kernel

NODE_PENALTY: Final = 0.17
"""Time added by each doubling of nodes, for a workload without its own figure: assumed. ResNet-50 on two GPUs
achieved 114.8 images/s on one node and 98.0 on two (Jeon et al., ATC'19, table 4; recalled)."""


@kernel
def node_spread_speed(node_penalty: float, nodes: float, fewest_nodes: float) -> float:
    """Speed of a gang on more nodes than it needs, relative to the fewest; exactly 1 on the fewest.

    Args:
        node_penalty: Time added by each doubling of nodes, fraction.
        nodes: Nodes of the gang.
        fewest_nodes: Fewest nodes that hold it.

    Returns:
        1 / (1 + node_penalty * log2(nodes / fewest_nodes)).
    """
    if nodes <= fewest_nodes:
        return 1.0
    return 1.0 / (1.0 + node_penalty * math.log2(nodes / fewest_nodes))


@kernel
def gang_efficiency(gang_overhead: float, gpus: float) -> float:
    """Throughput per GPU in a gang, relative to a single GPU; exactly 1 for one.

    Args:
        gang_overhead: Time added by each doubling of GPUs, fraction (`GANG_OVERHEAD`).
        gpus: GPUs of the gang, at least 1.

    Returns:
        1 / (1 + gang_overhead * log2(gpus)); for advice and estimates, not for the run times of a trace.
    """
    if gpus <= 1.0:
        return 1.0
    return 1.0 / (1.0 + gang_overhead * math.log2(gpus))


class FittedConstant(NamedTuple):
    """A fitted constant.

    Attributes:
        value: Value of least mean absolute error of the logarithm of the throughput.
        log_error: This error.
        points: Number of measured points.
    """

    value: float
    log_error: float
    points: int


GANG_OVERHEAD: Final[Mapping[str, FittedConstant]] = MappingProxyType(
    {
        "ResNet-18": FittedConstant(0.095, 0.121, 30),
        "ResNet-50": FittedConstant(0.055, 0.067, 21),
        "Transformer": FittedConstant(0.265, 0.149, 30),
        "LM": FittedConstant(0.526, 0.216, 30),
    }
)
"""`gang_overhead` by workload family: Gavel's throughputs on 2, 4 and 8 K80 and P100, relative to one.

The V100's values are excluded: its single GPU is on another machine, and eight are up to 12.6 times as fast
as one. `python -m studies.models.fit_models --only scaling` prints both.
"""


class TypeSpeed(NamedTuple):
    """Speed on a K80 and on a P100, relative to a V100."""

    k80: float
    p100: float


GPU_TYPE_SPEED: Final[Mapping[str, TypeSpeed]] = MappingProxyType(
    {
        "A3C": TypeSpeed(0.479, 0.792),
        "CycleGAN": TypeSpeed(0.114, 0.543),
        "LM (batch size 5)": TypeSpeed(0.233, 0.832),
        "LM (batch size 10)": TypeSpeed(0.291, 0.944),
        "LM (batch size 20)": TypeSpeed(0.265, 0.899),
        "LM (batch size 40)": TypeSpeed(0.254, 0.791),
        "LM (batch size 80)": TypeSpeed(0.214, 0.749),
        "Recommendation (batch size 512)": TypeSpeed(1.409, 2.096),
        "Recommendation (batch size 1024)": TypeSpeed(1.509, 2.315),
        "Recommendation (batch size 2048)": TypeSpeed(1.398, 2.222),
        "Recommendation (batch size 4096)": TypeSpeed(1.357, 2.278),
        "Recommendation (batch size 8192)": TypeSpeed(0.950, 1.953),
        "ResNet-18 (batch size 16)": TypeSpeed(0.148, 1.109),
        "ResNet-18 (batch size 32)": TypeSpeed(0.240, 1.196),
        "ResNet-18 (batch size 64)": TypeSpeed(0.293, 0.926),
        "ResNet-18 (batch size 128)": TypeSpeed(0.100, 0.649),
        "ResNet-18 (batch size 256)": TypeSpeed(0.086, 0.750),
        "ResNet-50 (batch size 16)": TypeSpeed(0.202, 0.794),
        "ResNet-50 (batch size 32)": TypeSpeed(0.159, 0.628),
        "ResNet-50 (batch size 64)": TypeSpeed(0.141, 0.596),
        "ResNet-50 (batch size 128)": TypeSpeed(0.139, 0.635),
        "Transformer (batch size 16)": TypeSpeed(0.494, 0.862),
        "Transformer (batch size 32)": TypeSpeed(0.330, 0.741),
        "Transformer (batch size 64)": TypeSpeed(0.203, 0.591),
        "Transformer (batch size 128)": TypeSpeed(0.180, 0.564),
        "Transformer (batch size 256)": TypeSpeed(0.287, 1.052),
    }
)
"""By job of Gavel (OSDI'20), named as in its throughputs: measured solo on one GPU.

Ratios near or above 1 are doubtful: a bottleneck other than the GPU seems to limit a small ResNet-18 and
Recommendation on the V100 (two are 3.1 times as fast as one on ResNet-18, batch size 16).
"""
