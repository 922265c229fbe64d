"""Writes the Markdown card of a trained policy: training data, behaviour, and measured gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

import rlsched
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, Strategy, dials_of
from rlsched.decide.dials.turning import RANGES
from rlsched.objective import Objective
from rlsched_agents.dials.habits import PRICES, Habits
from rlsched_agents.dials.judging import Floats
from rlsched_agents.dials.lesson import DialRecipe
from rlsched_agents.dials.training_data import TraceUse
from rlsched_agents.dials.verdict import StrategyComparison, Trained

CARD_FILE: Final = "CARD.md"
"""Name of the card in the folder of a trained policy."""
_STRONGEST = 3


def card_text(
    found: Trained,
    recipe: DialRecipe,
    uses: Sequence[TraceUse],
    seed: int,
    *,
    priced: DialRecipe | None = None,
    objective: Objective | None = None,
    habits: Habits | None = None,
) -> str:
    """Return the card as Markdown.

    Args:
        found: The result of the training.
        recipe: The recipe of the training.
        uses: How each trace was used.
        seed: Seed of the training.
        priced: The recipe for windows with prices, if the training had both kinds of windows; otherwise None.
        objective: The objective of the training; None: the default objective.
        habits: Mean positions of the dials; None: not measured.
    """
    lines = [
        "# A trained policy",
        "",
        f"By `rlsched train` {rlsched.__version__}, seed {seed}; digest of its strategy "
        f"`{found.strategy.digest}`. Chosen: {found.stage or 'nothing'}.",
        "",
        f"{found.verdict[0].upper()}{found.verdict[1:]}.",
        "",
        "## The rule",
        "",
        "```toml",
        found.policy.toml.strip(),
        "```",
        "",
        f"Changed setting: {f'`{found.setting}`' if found.setting else 'nothing'}.",
        "",
        "## What it learned",
        "",
        "A dial is added to a setting of the rule. A constant is the position of the dial where all columns "
        "are 0; the columns are the ones that move the dial most. The last figure is the cost with this dial "
        f"frozen at 0, divided by the cost with it{', on windows with prices' if priced else ''}: above 1, "
        "the dial helps.",
        "",
        *_table(("dial", "range", "constant", "moved most by", "frozen"), _dial_rows(found)),
        "",
        *by_hour(habits),
        "## Measured gain",
        "",
        "Geometric means of ratios to the original settings, with 95 % bootstrap intervals over stretches of "
        "the traces. Cost is the weighted sum of time in the system and energy, or as the objective defines "
        "it; delay is the time that a job takes beyond its run time on GPUs of its own.",
        "",
        *_table(
            ("what", "windows for", "cost", "delay", "energy or money", "better in", "windows"), _worth(found)
        ),
        "",
        *_objective(found, objective),
        *(line for sentence in found.why_not for line in (sentence, "")),
        *_by_source(found.confirmed),
        "## Data",
        "",
        f"Spans in seconds from the trace's first job; windows of {_windows(recipe)}"
        + (f"; with prices, of {_windows(priced)}." if priced else "."),
        "",
        *_table(
            ("trace", "jobs", "training", "choosing and confirming"),
            [(one.trace, f"{one.jobs:,}", _span(one.train_s), _span(one.validation_s)) for one in uses],
        ),
    ]
    return "\n".join(lines) + "\n"


def by_hour(habits: Habits | None) -> list[str]:
    """Return the lines of the card's section on the dials by hour and price; [] without `habits`."""
    if habits is None:
        return []
    head, rows = habits.rows()
    prices = (
        f"; low and high prices are below {PRICES[0]:g} and above {PRICES[1]:g} of the mean of about a day"
    )
    return [
        "## Dials by hour and price" if habits.has_prices else "## Dials by hour",
        "",
        f"Mean positions of the dials over {habits.counts.sum():,.0f} settings in {habits.windows} held-out "
        f"windows. Hours count from the trace's second 0{prices if habits.has_prices else ''}.",
        "",
        *_table(head, rows),
        "",
    ]


def _objective(found: Trained, objective: Objective | None) -> list[str]:
    """Return the lines of the card's section on the objective; [] for the default objective."""
    if objective is None or objective.is_default:
        return []
    rows = []
    if found.confirmed is not None:
        bounds = found.confirmed.bounds
        rows = [
            (name, str(ratio), f"{bounds[name]:g}" if name in bounds else "-")
            for name, ratio in found.confirmed.terms.items()
        ]
    return [
        "The objective:",
        "",
        "```toml",
        objective.toml.strip(),
        "```",
        "",
        *_table(("term", "windows for confirming", "bound"), rows),
        "",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _dial_rows(found: Trained) -> list[tuple[str, ...]]:
    constant, moved = _effects(found.strategy)
    rows = list[tuple[str, ...]]()
    for (name, span), at, by in zip(RANGES.items(), constant, moved, strict=True):
        order = np.argsort(-np.abs(by))[:_STRONGEST]
        most = ", ".join(f"{NAMES[k]} {by[k] * span:+.2f}" for k in order if by[k] != 0.0) or "-"
        frozen = str(found.frozen[name]) if name in found.frozen else "-"
        rows.append((f"`{name}`", f"±{span:g}", f"{at * span:+.3f}", most, frozen))
    return rows


def _effects(strategy: Strategy) -> tuple[Floats, Floats]:
    """Return the (D,) dials if all columns are 0, and the (D, F) effects of the columns on the dials.

    The F columns are the observed features. Positions and effects are fractions of the dials' ranges. In a
    linear strategy, the effect of a column is its weight. In a network, it is half the difference of the dial
    between column values 1 and -1, with all other columns at 0.
    """
    layers = strategy.matrices
    probes = np.vstack([np.zeros(NUM_COLUMNS), np.eye(NUM_COLUMNS), -np.eye(NUM_COLUMNS)])
    probes = dials_of(layers, probes, strategy.output)
    if len(layers) == 1:
        return probes[0], layers[0][:, :-1]
    return probes[0], (probes[1 : NUM_COLUMNS + 1] - probes[NUM_COLUMNS + 1 :]).T / 2.0


def _worth(found: Trained) -> list[tuple[str, ...]]:
    rows = [(name, "choosing", one) for name, one in (*found.tried.items(), *found.chosen.items())]
    if found.confirmed is not None:
        rows.append((found.stage, "confirming", found.confirmed))
    rows += [(f"{found.stage}, {name}", "confirming", one) for name, one in found.also.items()]
    return [
        (
            name,
            what,
            str(one.cost),
            str(one.delay),
            str(one.energy_or_money),
            f"{one.cost.better_frac:.0%}",
            str(one.cost.windows),
        )
        for name, what, one in rows
    ]


def _windows(recipe: DialRecipe) -> str:
    drawn = recipe.drawn
    return (
        f"{drawn.jobs:,} jobs on {drawn.nodes_low} to {drawn.nodes_high} nodes, loads {drawn.load_low:g} to "
        f"{drawn.load_high:g}"
    )


def _by_source(confirmed: StrategyComparison | None) -> list[str]:
    if confirmed is None:
        return []
    rows = [(name, f"{ratio:.3f}") for name, ratio in confirmed.by_source.items()]
    return [*_table(("trace", "cost, windows for confirming"), rows), ""]


def _span(span: tuple[float, float]) -> str:
    return f"[{span[0]:,.0f}, {span[1]:,.0f})" if span[1] > span[0] else "-"
