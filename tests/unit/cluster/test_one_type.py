"""All states have one type for numba, or kernels would be compiled for each type."""

from __future__ import annotations

import pytest
from numba import typeof

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.policies.presets import PRESETS
from rlsched_envs.sim.play_forward import _Copies


def arrays_of(policy: str) -> StateArrays:
    order = OrderedQueue(Policy.of(policy).rule.order)
    return ClusterState.from_spec(ClusterSpec.uniform(2, 4), order).arrays


@pytest.mark.parametrize("policy", sorted(name for name in PRESETS if not Policy.of(name).scheduler))
def test_states_of_any_queue_order_have_one_type(policy: str) -> None:
    assert typeof(arrays_of(policy)) == typeof(arrays_of("fifo"))


@pytest.mark.parametrize("policy", ["fifo", "gittins"])
def test_states_of_a_forecast_have_the_same_type(policy: str) -> None:
    arrays = arrays_of(policy)
    assert typeof(_Copies()._sized(arrays, 4).sim.state) == typeof(arrays)
