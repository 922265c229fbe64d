"""The results of an evaluation, as data."""

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
        digest: Hash of the settings.
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
        seeds: Seeds of the policies; metrics are means over the seeds.
        policies: Metrics of each policy, by name, in the order given.
        settings: Settings of each policy, by name.
        since_s: Start of the window, seconds of the trace; None: start of the trace.
        until_s: End of the window, seconds of the trace; None: end of the trace.
        baseline: Name of the policy with which `paired` compares the other policies.
        paired: Comparison of each other policy with the baseline, on the same jobs.
        rejected_reasons: Number of measured jobs that can never run, by reason.
        models: The models of all runs; None: jobs ran as recorded in the trace.
        profiled: Number of measured jobs whose workload comes from a learnt profile; None: no profiles were
            given.
        mig_slices: Number of MIG slices among the GPUs.
        devices: Number of GPUs in the nodes, whole or partitioned.
        prediction: Predictor for jobs whose run time the trace does not predict: `hedge` or `running-mean`.
        predicted_by: Where the predicted run times of the measured jobs come from, in one sentence.
        verdict: The result in one sentence (`verdict.verdict_of`).
        cautions: Caveats of these results.
        recorded: Outcomes of the jobs as recorded in the trace; None: the trace has no waiting times.
        fed_truth: Names of policies that know the true run times; no broker can run these policies.
        crowded_vcs: Offered load of each VC on its own nodes, for VCs with a load above 1.
        currency: Currency of the costs of electricity; "" without models or without [energy].
        objective: The objective that defines `scores`, as TOML; "": none.
        scores: Cost of each other policy relative to the baseline, as the objective defines it.
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
