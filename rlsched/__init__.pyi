"""Types of the Python interface; `__init__.py` imports each when it is first used."""

from rlsched.client.client import Client as Client
from rlsched.cluster.spec import ClusterSpec as Cluster
from rlsched.decide.policies.policy import Policy as Policy
from rlsched.errors import RlschedError as RlschedError
from rlsched.objective import Objective as Objective
from rlsched.workload.synth import synthesize as synthesize
from rlsched.workload.trace import Trace as Trace
from rlsched_agents.evaluate.simulate import simulate as simulate
from rlsched_envs.sim.modelling import Models as Models

__version__: str
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
