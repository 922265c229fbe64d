"""rlsched: a reinforcement-learning scheduling agent for GPU clusters.

This module is the Python interface. Each attribute is imported when it is first used.

Attributes:
    Trace: Jobs with submission times and durations: `Trace.read("t.csv.gz")`.
    Cluster: Nodes and GPUs: `Cluster.read("c.toml")`.
    Policy: A scheduling policy as data: `Policy("easy", order="area^0.7")`.
    Models: Models of jobs' speed and power, as a function of GPU sharing, clocks and cores: `Models()`.
    Objective: Weights, classes of jobs and bounds of a cost: `Objective.of("bill")`.
    synthesize: Generates a random trace, and a cluster for the trace.
    simulate: Replays a trace under several policies, and returns `Runs` to compare.
    Client: Submits jobs to a running broker.
    RlschedError: Base class of all errors of this package.

>>> import rlsched as rs
>>> trace, cluster = rs.synthesize("helios", jobs=200, load=0.9, gpus=32)
>>> runs = rs.simulate(trace, cluster, ["fifo", "easy"])
>>> list(runs)
['fifo', 'easy']

Importing Gymnasium as well registers `gymnasium.make("rlsched/Cluster-v0", trace=trace, cluster=cluster)`.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` is imported later, with the collector paused: see `rlsched.collector`
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__version__ = "0.1.0"
__all__ = [
    "Client",
    "Cluster",
    "Models",
    "Objective",
    "Policy",
    "RlschedError",
    "Trace",
    "__version__",
    "simulate",
    "synthesize",
]

_HERE = {
    "Client": "rlsched.client.client:Client",
    "Cluster": "rlsched.cluster.spec:ClusterSpec",
    "Objective": "rlsched.objective:Objective",
    "Policy": "rlsched.decide.policies.policy:Policy",
    "RlschedError": "rlsched.errors:RlschedError",
    "Trace": "rlsched.workload.trace:Trace",
    "synthesize": "rlsched.workload.synth:synthesize",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rlsched' has no attribute {name!r}")
    if name in _HERE:
        module, _, attribute = _HERE[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        found = _above(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def _above(name: str) -> Any:
    """Load an object through its entry point, because the package that defines it imports this package."""
    from importlib.metadata import entry_points

    for point in entry_points(group="rlsched.interface", name=name):
        return point.load()
    raise ImportError(f"this installation has no {name!r}: install rlsched again (pip install)")


def _register() -> None:
    """Register the environment `rlsched/Cluster-v0` with Gymnasium."""
    _above("register_environment")()


class _WhenImported:
    """A module finder that registers the environment when Gymnasium is imported.

    Gymnasium has not loaded plugins by entry points since version 1.0.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _WhenImported())  # `importlib.abc`, its type, would load a third of `submit`
