"""Speed of a gang on several nodes."""

from __future__ import annotations

import math

from rlsched.compile.jit import kernel


@kernel
def node_spread_speed(node_penalty: float, nodes: float, fewest_nodes: float) -> float:
    """Return the speed of a gang relative to its speed on the fewest nodes; exactly 1 on the fewest.

    Args:
        node_penalty: Time added by each doubling of nodes, fraction.
        nodes: Number of nodes on which the gang runs.
        fewest_nodes: Least number of nodes on which the gang fits.

    Returns:
        1 / (1 + node_penalty * log2(nodes / fewest_nodes)).
    """
    if nodes <= fewest_nodes:
        return 1.0
    return 1.0 / (1.0 + node_penalty * math.log2(nodes / fewest_nodes))
