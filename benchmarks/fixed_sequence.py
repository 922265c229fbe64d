"""A fixed sequence of 4,000 jobs, on which a checkpoint records its gain and its inputs.

If a later change of simulator, candidates or features makes the policy worse, or changes its inputs under the
same schema, a test fails before an operator notices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Scheduler
from rlsched.decide.schema import ACTOR_FEATURES, NUM_FEATURES, SCHEMA
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine

LIKE: Final = "helios"
JOBS: Final = 4_000
LOAD: Final = 0.95
GPUS: Final = 64
SEED: Final = 4_000
"""Seed of the sequence; no training or validation trace has it."""
REFERENCE: Final = "qssf-backfill"
LOOKED_AT: Final = 1_000
"""Number of decisions whose rows are summed."""
FILE: Final = "sequence.json"


class FixedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a policy on the sequence.

    Attributes:
        schema_hash: Hash of the feature schema.
        queue_mean_s: Mean queueing delay under the policy.
        reference_queue_mean_s: The same under `qssf-backfill`.
        rows: Candidate rows of the reference's first decisions.
        legal_rows: Number of these rows that were legal.
        columns: Mean over these rows by feature.
    """

    schema_hash: str
    queue_mean_s: float
    reference_queue_mean_s: float
    rows: int
    legal_rows: int
    columns: dict[str, float]

    @property
    def ratio(self) -> float:
        """Queueing delay of the policy / that of the reference."""
        return self.queue_mean_s / self.reference_queue_mean_s


def run_sequence(policy: Scheduler) -> FixedSequence:
    """Replay the sequence with the policy, the reference, and a network that still equals the reference."""
    trace, spec = synthesize(LIKE, JOBS, LOAD, GPUS, seed=SEED, predictability="informative")

    def engine(order: Order) -> Engine:
        return Engine(trace, spec, order=order, keep_placements=False)

    rule = Policy(REFERENCE).rule
    queue, reference = (
        float(queue_s(table).mean())
        for table in (engine(policy.order).run(policy), engine(rule.order).run_rule(rule))
    )
    rows, legal, sums = 0, 0, np.zeros(NUM_FEATURES)
    decisions = 0

    def look(record: DecisionRecord) -> None:
        nonlocal rows, legal, decisions
        if not record.halves or decisions == LOOKED_AT:
            return
        decisions += 1
        for half in record.halves:
            shown = np.frombuffer(half.features, np.float32).reshape(-1, NUM_FEATURES)
            rows, legal = rows + len(shown), legal + sum(half.legal)
            sums[:] += shown.sum(axis=0, dtype=np.float64)

    untrained = PpoScheduler(initial_weights(NetworkConfig(), 0), NetworkConfig())
    engine(untrained.order).run(untrained, on_record=look)
    names = [name for name, _ in ACTOR_FEATURES]
    means = dict(zip(names, (sums / max(rows, 1)).round(6).tolist(), strict=True))
    return FixedSequence(
        schema_hash=SCHEMA.hash,
        queue_mean_s=round(queue, 3),
        reference_queue_mean_s=round(reference, 3),
        rows=rows,
        legal_rows=legal,
        columns=means,
    )


def write_sequence(folder: Path, found: FixedSequence) -> None:
    """Write the results next to a checkpoint."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read_sequence(folder: Path) -> FixedSequence:
    """Read the results stored with a checkpoint.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=FixedSequence)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path}: expected the results of the policy on the fixed sequence, got {error}; "
            "benchmarks/make_rows_checkpoint.py --sequence writes the file"
        ) from error
