"""Markdown of `generalise`: a line for each seed, and one for each cluster that was left out and seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from rlsched_agents.evaluate.pairs import geometric_mean
from studies.policy.cases import Case, Foresight
from studies.policy.runs import Result
from studies.policy.tables import Results, best_reference, bounded_ratios, header, number, ratio_text, row
from studies.policy.trainings import Trained

DEFAULT: Final = "ppo"
"""The shipped policy."""

Other = Callable[[Case, Trained], Result | None]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One training, with the replays of its result.

    Attributes:
        trained: Its end.
        policy: Name of its policy.
        cases: Cases of its replays.
    """

    trained: Trained
    policy: str
    cases: list[Case]


def seeds_section(lines: Sequence[Line], results: Results, asked: int) -> str:
    """Several seeds: the end of each run, and the queueing of its policy.

    Args:
        lines: Runs that have ended.
        results: Available replays.
        asked: Number of requested runs.
    """
    text = ["### Several seeds", ""]
    if not lines:
        return "\n".join([*text, f"None of {asked} runs has ended yet."])
    one = lines[0].trained
    text += [
        f"{len(lines)} of {asked} runs ended, {one.timesteps:,} decisions each, on the data of the default "
        f"policy; the rule that they follow is `{one.rule}`. The last four columns: mean queueing over the "
        "other's, geometric mean over the cases (better : worse).",
        "",
    ]
    kinds: tuple[Foresight, ...] = ("good", "causal")
    text += header(
        *("seed", "decisions a second", "confirmation", "kept"),
        *(f"{kind}: over {other}" for kind in kinds for other in ("the rule", "best QSSF")),
    )

    def cells(some: Sequence[Line]) -> list[str]:
        return [
            _cell(_pairs(some, results, other, kind))
            for kind in kinds
            for other in (_rule(results), _best(results))
        ]

    for line in lines:
        one = line.trained
        text.append(row(str(one.seed), number(one.steps_per_s), _confirmed(one), _kept(one), *cells([line])))
    won = sum(line.trained.kept_at > 0 for line in lines)
    text.append(row("all", "", "", f"{won} of {len(lines)} policies", *cells(lines)))
    return "\n".join(text)


def left_out_section(lines: Sequence[Line], results: Results, asked: int, seen: Collection[str] = ()) -> str:
    """Clusters left out: queueing of policies on clusters that they never saw.

    Args:
        lines: Runs that have ended, cluster by cluster.
        results: Available replays.
        asked: Number of requested runs.
        seen: Clusters in the training of the default policy.
    """
    text = ["### Clusters left out", ""]
    if not lines:
        return "\n".join([*text, f"None of {asked} runs has ended yet."])
    loads = ", ".join(f"{load:g}" for load in dict.fromkeys(case.load for case in lines[0].cases))
    one = lines[0].trained
    text += [
        f"{len(lines)} of {asked} runs ended, {one.timesteps:,} decisions each, on all traces but the "
        f"cluster left out; the rule that they follow is `{one.rule}`. Measured on its validation part with "
        f"causal predictions at load {loads}: mean queueing over the other's, geometric mean over the loads; "
        "worst: the largest of one load over best QSSF. A `*` marks clusters that "
        f"`{DEFAULT}`, the shipped policy, was trained on.",
        "",
    ]
    text += header(
        *("cluster", "jobs", "seed", "confirmation", "kept", "over the rule", "over best QSSF", "worst"),
        f"over `{DEFAULT}`",
    )
    others = (_rule(results), _best(results), _of(results, DEFAULT))
    for line in lines:
        one = line.trained
        rule, best, default = (_pairs([line], results, other) for other in others)
        measured = [found.metrics.jobs for case in line.cases if (found := _ours(line, case, results))]
        text.append(
            row(
                f"{one.cluster}{' *' if one.cluster in seen else ''}",
                number(max(measured, default=None)),
                *(str(one.seed), _confirmed(one), _kept(one)),
                *(_ratio(rule), _ratio(best), _worst(best), _ratio(default)),
            )
        )
    rule, best, default = (_pairs(lines, results, other) for other in others)
    won = sum(line.trained.kept_at > 0 for line in lines)
    text.append(
        row(
            *("all", "", "", "", f"{won} of {len(lines)} policies"),
            *(_over_clusters(lines, results, other) for other in others[:2]),
            *(_worst(best), _over_clusters(lines, results, others[2])),
        )
    )
    text.append(row("better : worse", "", "", "", "", _wins(rule), _wins(best), "", _wins(default)))
    return "\n".join(
        [*text, "", "All: geometric means over the clusters, [95 % bootstrap over them] from ten on."]
    )


Pairs = list[tuple[float, float]]
"""(ours, the other's) mean queueing delays, seconds."""


def _pairs(
    lines: Iterable[Line], results: Results, other: Other, predictions: Foresight | None = None
) -> Pairs:
    """Pairs of all cases, or of all with such predictions, if both are available."""
    found: Pairs = []
    for line in lines:
        for case in line.cases:
            if predictions not in (None, case.predictions):
                continue
            ours, theirs = _ours(line, case, results), other(case, line.trained)
            if ours is None or theirs is None:
                continue
            if ours.metrics.queue_mean_s is not None and theirs.metrics.queue_mean_s is not None:
                found.append((ours.metrics.queue_mean_s, theirs.metrics.queue_mean_s))
    return found


def _ours(line: Line, case: Case, results: Results) -> Result | None:
    return results.get((case.name, line.policy, False))


def _rule(results: Results) -> Other:
    return lambda case, one: results.get((case.name, one.rule, False))


def _best(results: Results) -> Other:
    return lambda case, _: best_reference(results, case, models=False)


def _of(results: Results, policy: str) -> Other:
    return lambda case, _: results.get((case.name, policy, False))


def _cell(pairs: Pairs) -> str:
    return f"{_ratio(pairs)} ({_wins(pairs)})" if pairs else ""


def _ratio(pairs: Pairs) -> str:
    """The mean without an interval: cases of one cluster, or seeds on one case, are no independent draws."""
    mean = bounded_ratios((one for one, _ in pairs), (other for _, other in pairs))
    return "" if mean is None else f"{mean.ratio:.3f}"


def _over_clusters(lines: Sequence[Line], results: Results, other: Other) -> str:
    """Each cluster counts once, whatever its number of seeds and loads."""
    means = []
    for cluster in dict.fromkeys(line.trained.cluster for line in lines):
        pairs = _pairs((line for line in lines if line.trained.cluster == cluster), results, other)
        mean = bounded_ratios((one for one, _ in pairs), (theirs for _, theirs in pairs))
        means += [mean.ratio] if mean is not None else []
    return ratio_text(geometric_mean(np.array(means, dtype=np.float64)))


def _worst(pairs: Pairs) -> str:
    ratios = [one / other for one, other in pairs if other]
    return f"{max(ratios):.3f}" if ratios else ""


def _wins(pairs: Pairs) -> str:
    return f"{sum(one < other for one, other in pairs)} : {sum(one > other for one, other in pairs)}"


def _confirmed(one: Trained) -> str:
    """Its score over that of the start, both on the confirmation windows."""
    if one.score is None or one.start_score is None:
        return "none better in validation"
    return f"{one.score / one.start_score:.3f}"


def _kept(one: Trained) -> str:
    return f"policy of {one.kept_at:,}" if one.kept_at else "start"
