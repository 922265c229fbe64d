"""What an evaluation has found, as numbers and sentences."""

from __future__ import annotations

import msgspec

from rlsched_agents.evaluate.as_recorded import AsRecorded
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.pairs import Comparison
from rlsched_envs.sim.modelling import Models


class PolicyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is.

    Attributes:
        toml: Its settings.
        digest: Of its settings: equal policies, equal digests.
    """

    toml: str
    digest: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What policies came to on the same jobs. None: nothing computes it, or nothing to compute it from.

    Attributes:
        trace: Name of the trace.
        cluster: Name of the cluster.
        nodes: Its nodes, after --nodes or --load.
        gpus: Its GPUs that jobs can be given; a MIG slice is one.
        load_frac: Offered load of the measured jobs on it.
        seeds: Seeds of the policies' draws; numbers are means over them.
        policies: By name, in the order asked for.
        settings: What each of them is, by name.
        since_s: First second of the window, None: the trace's start.
        until_s: End of the window, None: the trace's end.
        baseline: The policy that `paired` compares with.
        paired: Every other policy against the baseline, on the same jobs.
        rejected_reasons: Measured jobs that can never run, by reason.
        models: The models that every policy ran under; None: jobs ran as the trace says.
        mig_slices: MIG slices among the GPUs.
        devices: GPUs in its nodes, whole or cut.
        prediction: Who predicted the run times that the trace does not: `hedge` or `running-mean`.
        predicted_by: Where the predicted run times of the measured jobs come from, in one sentence.
        verdict: What came out, in one sentence (`verdict.verdict_of`).
        cautions: What to know before these numbers are shown to anybody, a sentence each.
        recorded: What the trace says of what really happened to the jobs; None: it does not say.
        fed_truth: Policies that are fed the true run times: bounds, which no broker can run.
        crowded_vcs: Offered load of each VC above 1, on nodes of its own.
    """

    trace: str
    cluster: str
    nodes: int
    gpus: int
    load_frac: float | None
    seeds: list[int]
    policies: dict[str, Metrics]
    settings: dict[str, PolicyUsed]
    since_s: float | None = None
    until_s: float | None = None
    baseline: str
    paired: dict[str, Comparison]
    rejected_reasons: dict[str, int]
    models: Models | None = None
    mig_slices: int = 0
    devices: int = 0
    prediction: str = ""
    predicted_by: str = ""
    verdict: str = ""
    cautions: list[str] = []
    recorded: AsRecorded | None = None
    fed_truth: list[str] = []
    crowded_vcs: dict[str, float] = {}
