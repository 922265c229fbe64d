"""The card of a checkpoint: origin of a policy and its measured results."""

from __future__ import annotations

from typing import Any

import msgspec

from rlsched.decide.drift import Familiar
from rlsched_agents.runtime.network import NetworkConfig

CARD_FORMAT = 1
_CONFIRMATION = (
    "Held-out windows. `ppo` is the policy that validation chose, `start` the initial policy: if `start` is "
    "no worse, this checkpoint contains `start`."
)
_TEST = (
    "The last 20 % of the time of each trace, which was not used for any choice; relative to the better of "
    "`qssf` and `qssf-backfill`, case by case (`studies/policy`, loads 0.85 to 1.05): geometric mean, 95 % "
    "bootstrap over the cases, and the worst case."
)


class TraceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one trace was split by time. Every span is [from, to) in seconds from the trace's first job.

    An empty span was not used.

    Attributes:
        trace: Name of the trace.
        cluster: Name of its cluster.
        jobs: Jobs in the whole trace.
        train_s: Span that training drew episodes from.
        validation_s: Span that chose the checkpoint.
        test_s: Span used by neither.
    """

    trace: str
    cluster: str
    jobs: int
    train_s: tuple[float, float]
    validation_s: tuple[float, float]
    test_s: tuple[float, float]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `card.json`.

    Attributes:
        format: `CARD_FORMAT`.
        name: Name of the policy.
        created: UTC, ISO 8601.
        rlsched_version: Version of rlsched that trained the policy.
        schema_hash: Checksum of the feature schema; `schema.json` has the columns of the schema.
        network: Sizes and prior weights.
        timesteps: Decisions trained on.
        seeds: Seeds of the training run.
        temperature: Temperature of serving: 0 for arg max, otherwise softmax temperature of the draw.
        traces: Traces for training, validation and testing.
        recipe: Hyperparameters by name.
        validation: Policy -> metric (units in the name) -> value on the validation windows.
        confirmation: Like `validation`, on held-out windows: `ppo` is the policy that validation chose,
            `start` the initial policy.
        test: Row of the comparison with rules -> figure -> value, on the test split.
        weights_sha256: SHA-256 of `weights.npz`.
        notes: Free text.
        familiar: Ranges seen in training; None in older cards and for untrained policies: drift is then not
            monitored.
    """

    format: int = CARD_FORMAT
    name: str
    created: str
    rlsched_version: str
    schema_hash: str
    network: NetworkConfig
    timesteps: int
    seeds: tuple[int, ...]
    temperature: float = 0.0
    traces: tuple[TraceUse, ...] = ()
    recipe: dict[str, Any] = {}
    validation: dict[str, dict[str, float]] = {}
    confirmation: dict[str, dict[str, float]] = {}
    test: dict[str, dict[str, float]] = {}
    weights_sha256: str = ""
    notes: str = ""
    familiar: Familiar | None = None

    def to_markdown(self) -> str:
        """Return this card as Markdown."""
        served = "arg max" if self.temperature == 0 else f"drawn at temperature {self.temperature:g}"
        lines = [
            f"# {self.name}",
            "",
            f"Trained by rlsched {self.rlsched_version}, {self.created}, {self.timesteps:,} decisions, "
            f"seeds {', '.join(map(str, self.seeds))}. Served {served}.",
            "",
            f"Feature schema `{self.schema_hash}`; weights SHA-256 `{self.weights_sha256}`.",
            "",
        ]
        lines += [self.notes, ""] if self.notes else []
        lines += [
            "## Data",
            "",
            "Spans in seconds from the trace's first job.",
            "",
            "| trace | cluster | jobs | train | validation | test |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {use.trace} | {use.cluster} | {use.jobs:,} | {_span(use.train_s)} | "
            f"{_span(use.validation_s)} | {_span(use.test_s)} |"
            for use in self.traces
        ]
        lines += ["", "## Validation", ""]
        lines += _table(self.validation)
        if self.confirmation:
            lines += ["", "## Confirmation", "", _CONFIRMATION, ""]
            lines += _table(self.confirmation)
        if self.test:
            lines += ["", "## Test split", "", _TEST, ""]
            lines += _table(self.test, "row")
        if self.familiar is not None:
            lines += ["", "## What was seen", "", *_seen(self.familiar)]
        lines += ["", "## Hyper-parameters", "", "| name | value |", "|---|---|"]
        network = msgspec.to_builtins(self.network)
        lines += [f"| {key} | {value} |" for key, value in {**network, **self.recipe}.items()]
        return "\n".join(lines) + "\n"


def _span(span: tuple[float, float]) -> str:
    return f"[{span[0]:,.0f}, {span[1]:,.0f})" if span[0] < span[1] else "-"


def _seen(familiar: Familiar) -> list[str]:
    return [
        f"Partitions of {familiar.nodes[0]} to {familiar.nodes[1]} nodes, {familiar.gpus[0]} to "
        f"{familiar.gpus[1]} GPUs. A broker's fallback decides while most observations lie outside:",
        "",
        "| column | least | most |",
        "|---|---|---|",
        *(f"| {name} | {low:.4g} | {high:.4g} |" for name, (low, high) in familiar.columns.items()),
    ]


def _table(validation: dict[str, dict[str, float]], first: str = "policy") -> list[str]:
    if not validation:
        return ["None was run."]
    metrics = sorted({metric for values in validation.values() for metric in values})
    lines = [f"| {first} | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for policy, values in validation.items():
        cells = [f"{values[metric]:,.4g}" if metric in values else "" for metric in metrics]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines
