"""A copy of a state changes separately, and compiled functions accept it as the state's type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import typeof

from rlsched.cluster.mirror import mirror_of
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.models.catalogue import load_catalogue


def fields(part: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    for field in getattr(part, "_fields", ()):
        yield from fields(getattr(part, field), f"{name}.{field}")
    if isinstance(part, np.ndarray):
        yield name, part


def state(policy: str, *, modelled: bool) -> ClusterState:
    made = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(load_scheduler(policy).order))
    if modelled:
        made.clock_by_models(load_catalogue().arrays(made.kind_names))
    return made


@pytest.mark.parametrize("policy", ["fifo", "tuned", "gittins", "ppo"])
@pytest.mark.parametrize("modelled", [False, True])
def test_no_kernel_is_compiled_for_a_copy(policy: str, modelled: bool) -> None:
    made = state(policy, modelled=modelled)
    kinds = {name: typeof(array) for name, array in fields(made.arrays, "arrays")}
    assert len(kinds) > 10
    assert {name: typeof(array) for name, array in fields(mirror_of(made).arrays, "arrays")} == kinds


def test_decisions_on_a_copy_do_not_change_the_original() -> None:
    made = state("tuned", modelled=False)
    first = made.add_job(num_gpus=2, submit_s=0.0, predicted_s=60.0, spread=1.0)
    before = made.digest()
    copied = mirror_of(made)
    assert copied.digest() == before
    copied.start(first, [0, 1], 1.0)
    assert made.digest() == before != copied.digest()
    made.start(first, [4, 5], 1.0)
    assert (copied.gpus_of(first), made.gpus_of(first)) == ([0, 1], [4, 5])
