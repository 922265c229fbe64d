"""Results of an evaluation, as numbers and sentences."""

from __future__ import annotations

import msgspec

from rlsched_agents.evaluate.as_recorded import AsRecorded
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.pairs import Comparison
from rlsched_agents.evaluate.scoring import Score
from rlsched_envs.sim.modelling import Models


class PolicyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an evaluated policy.

    Attributes:
        toml: The settings as TOML.
        digest: Digest of the settings: equal policies have equal digests.
    """

    toml: str
    digest: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Results of policies on the same jobs. A field is None if it was not computed or has no data.

    Attributes:
        trace: Name of the trace.
        cluster: Name of the cluster.
        nodes: Number of nodes, after --nodes or --load.
        gpus: Number of GPUs that the scheduler can allocate; a MIG slice counts as one GPU.
        load_frac: Offered load of the measured jobs on the cluster.
        seeds: Seeds of the policies; numbers are means over the seeds.
        policies: Metrics of each policy, by name, in the order of the request.
        settings: Settings of each policy, by name.
        since_s: First second of the window; None: start of the trace.
        until_s: End of the window; None: end of the trace.
        baseline: The policy that `paired` compares the other policies with.
        paired: Comparison of each other policy with the baseline, on the same jobs.
        rejected_reasons: Measured jobs that can never run, by reason.
        models: The models of all runs; None: jobs ran as recorded in the trace.
        profiled: Number of measured jobs whose workload comes from a learnt profile; None: no profiles were
            given.
        mig_slices: Number of MIG slices among the GPUs.
        devices: Number of GPUs in the nodes, whole or partitioned.
        prediction: Predictor for jobs that have no predicted run time in the trace: `hedge` or
            `running-mean`.
        predicted_by: Source of the predicted run times of the measured jobs, in one sentence.
        verdict: The result in one sentence (`verdict.verdict_of`).
        cautions: Caveats of these numbers, one sentence each.
        recorded: Recorded outcomes of the jobs; None: the trace has no waiting times.
        fed_truth: Policies that receive the true run times. Their results are bounds: no broker can run these
            policies.
        crowded_vcs: Offered load of each VC whose load on its own nodes is above 1.
        currency: Currency of the costs of electricity; "" without a price or without models.
        objective: The objective of `scores`, as TOML; "": none.
        scores: Cost of each other policy relative to the baseline, by the objective.
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
    profiled: int | None = None
    mig_slices: int = 0
    devices: int = 0
    prediction: str = ""
    predicted_by: str = ""
    verdict: str = ""
    cautions: list[str] = []
    recorded: AsRecorded | None = None
    fed_truth: list[str] = []
    crowded_vcs: dict[str, float] = {}
    currency: str = ""
    objective: str = ""
    scores: dict[str, Score] = {}
