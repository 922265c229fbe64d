"""`rlsched train`: learns better settings and dials for a policy from past jobs, and measures the gain."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import PATH, QUIET, json_option, seed_option, shown
from rlsched_agents.cli.learned_from import LearnedFrom, learned_from, make_writable, recipe_option
from rlsched_agents.cli.ray_options import ray_options
from rlsched_agents.cli.used_logdir import check_logdir, clear, overwriting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlsched.objective import Objective
    from rlsched.terminal.progress import Progress
    from rlsched_agents.dials.evolution import Generation
    from rlsched_agents.dials.lesson import DialRecipe
    from rlsched_agents.dials.training_curves import TrainingCurves
    from rlsched_agents.dials.training_data import TrainingData
    from rlsched_agents.dials.verdict import Trained
    from rlsched_agents.dials.window_runs import MakeRunner

EXIT_INTERRUPTED = 130
NARROW = 110
"""Width of the terminal, characters, below which the table has a confidence interval only for the cost."""
LAST = "last.toml"
"""File in the log folder for the last policy of a training run, even if it is no better than the original."""


@click.command()
@learned_from("causal")
@shown(
    "--policy",
    default="tuned",
    metavar="P",
    help="Policy to improve: a named policy or a TOML file. Its trained strategy, if any, is not used.",
)
@click.option(
    "--out",
    required=True,
    type=PATH,
    metavar="FOLDER",
    help="Folder to write: settings, the trained strategy if there is one, and a description. Other commands "
    "accept it as --policy. If the name ends in .toml, the settings are written to this file, and the rest "
    "to files next to it. Nothing is written unless the result is confirmed to be better than --policy.",
)
@click.option(
    "--logdir",
    type=PATH,
    metavar="DIR",
    help="Folder for TensorBoard logs, and for the state from which --resume continues.",
)
@click.option("--resume", is_flag=True, help="Continue the interrupted training in --logdir.")
@overwriting
@seed_option("Random seed of the training.")
@shown(
    "--algorithm",
    type=click.Choice(["ppo", "es"]),
    default="ppo",
    help="ppo: evolve a linear strategy, then train a neural network from it by PPO. es: only evolve the "
    "linear strategy.",
)
@shown(
    "--objective",
    default="balanced",
    metavar="O",
    help="Cost that the policy minimises: balanced (time and energy; with --signal, time and money), bill, "
    "carbon, peak (bill and highest power), small-first, or a TOML file with weights, classes of jobs and "
    "bounds (docs/how-to/train.md).",
)
@recipe_option(
    "Hyper-parameters of the training: default, quick (a fifth of the work), smoke (only checks that "
    "training runs), or a .toml file."
)
@ray_options("windows", "The result is the same as without Ray.")
@json_option("Print the result as JSON.")
@QUIET
def train(
    given: LearnedFrom,
    *,
    policy: str,
    out: Path,
    logdir: Path | None,
    resume: bool,
    overwrite: bool,
    seed: int,
    algorithm: str,
    objective: str,
    recipe: str,
    workers: int | None,
    ray: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Train a policy on past jobs: better settings, and a strategy that adapts to the state of the cluster.

    A strategy sets dials: numbers that adjust the policy's settings, such as margins and prices, while it
    runs. The last lines of the output give the result, the file of the last weights and the next step. After
    Ctrl-C, --resume continues the training if --logdir was given.

    The data is split by time. Of a --history, 70 % are for training, 10 % to select the best candidate, and
    20 % for one final comparison with --policy. Of a --trace, 70 % are for training, 5 % to select the best
    candidate, and 5 % for the comparison; the last 20 % are not used, so that you can test on them.

    \b
    Example:
      rlsched train --history sacct.csv --cluster c.toml --logdir runs/mine --out mine
      rlsched train --synthetic helios --recipe quick --out mine
      rlsched train --synthetic helios --signal solar --objective bill --recipe quick --out cheap
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy tuned --policy mine/
    """
    from rlsched.errors import InputError

    given.check()
    if out.suffix not in ("", ".toml"):
        raise InputError(f"--out {out}: expected a folder, or a name that ends in .toml")
    if resume and logdir is None:
        raise InputError(
            "--resume works only with --logdir, the folder of the interrupted training: give --logdir too"
        )
    if logdir is not None:
        check_logdir(logdir, resume=resume, overwrite=overwrite)
    elif overwrite:
        raise InputError(
            "--overwrite works only with --logdir, the folder of the earlier training: give --logdir too"
        )

    from rlsched.compile.compiling import COMPILING
    from rlsched.decide.policies.policy import Policy
    from rlsched.objective import Objective
    from rlsched.terminal.progress import Progress
    from rlsched_agents.dials.lesson import Lesson
    from rlsched_agents.dials.recipes import load_recipe
    from rlsched_agents.dials.training import CONSTANTS, FOLLOWING, SETTINGS, STATE_FILE, Training
    from rlsched_agents.dials.training_curves import TrainingCurves
    from rlsched_agents.dials.verdict import PPO

    chosen, rule = load_recipe(recipe), Policy.of(policy).with_settings(dials="")
    rule.rule  # noqa: B018 - raises before anything is read
    wanted = Objective.of(objective)
    if wanted.needs_signal and not given.prices:
        raise InputError(
            f"--objective {objective}: needs prices or carbon intensities of electricity for "
            f"{', '.join(wanted.needs_signal)}; give --signal FILE, or --signal flat for constant prices"
        )
    make_writable(out.parent)
    with _workers(ray, workers, quiet=quiet) as make_runner:
        with COMPILING.during("reading or drawing traces"):
            data = given.read(seed, quiet=quiet)
        chosen = chosen.with_prices() if given.prices else chosen
        chosen, asked = chosen.fitted(data), chosen.drawn.jobs
        if chosen.drawn.jobs < asked and not quiet:
            click.echo(
                f"training uses windows of {chosen.drawn.jobs:,} jobs instead of {asked:,}: the data has too "
                "few jobs for longer windows",
                err=True,
            )
        with COMPILING.during("drawing windows of the traces"):
            lesson = Lesson.from_traces(data, chosen, rule, seed, wanted)
        training = Training(
            lesson,
            chosen,
            seed,
            state_file=logdir / STATE_FILE if logdir is not None else None,
            workers=workers,
            algorithm=algorithm,
            make_runner=make_runner,
        )
        total = {
            SETTINGS: len(chosen.others(rule)),
            CONSTANTS: chosen.constants.generations,
            FOLLOWING: chosen.following.generations,
            PPO: chosen.ppo.rollouts,
        }
        if logdir is not None and overwrite:
            clear(logdir)
        drawing = TrainingCurves(logdir, chosen, rule, data, seed, wanted) if logdir is not None else None
        try:
            with Progress(shown=not quiet) as progress:
                shown = _Shown(total, drawing, progress)
                found = training.run(shown.show_generation, resume=resume, say=progress.print_line)
                progress.print_line("evaluating the result")
            return _finish(found, chosen, data, seed, out, logdir, drawing, wanted, as_json=as_json)
        except KeyboardInterrupt:
            again = (
                "continue with the same command and --resume" if logdir else "nothing was kept: no --logdir"
            )
            click.echo(f"stopped; {again}", err=True)
            return EXIT_INTERRUPTED
        finally:
            if drawing is not None:
                drawing.close()


@contextmanager
def _workers(ray: str | None, workers: int | None, *, quiet: bool) -> Iterator[MakeRunner | None]:
    """Connect to a Ray cluster for a `with` block. Yields the function that starts workers there.

    Without `ray`, yields None.

    Raises:
        ImportError: Ray is not installed.
        InputError: no Ray cluster answers at the address in time.
        RlschedError: the cluster was lost inside the `with` block.
    """
    if ray is None:
        yield None
        return
    from rlsched_agents.dials.ray_windows import RayRunner
    from rlsched_agents.workers.ray_cluster import connected, num_cpus

    with connected(ray, workers):
        if not quiet:
            click.echo(f"windows run on the Ray cluster {ray}, which has {num_cpus()} CPUs", err=True)
        yield partial(RayRunner, workers=workers)


def _finish(
    found: Trained,
    recipe: DialRecipe,
    data: Sequence[TrainingData],
    seed: int,
    out: Path,
    logdir: Path | None,
    drawing: TrainingCurves | None,
    objective: Objective,
    *,
    as_json: bool,
) -> int:
    """Write the policy if it is confirmed to be better, and print the result and the next step."""
    import msgspec

    from rlsched.decide.policies.policy import POLICY_FILE
    from rlsched.terminal.show import print_json, print_text
    from rlsched_agents.dials.card import CARD_FILE, card_text
    from rlsched_agents.dials.habits import habits_of

    if found.is_better and found.sets_dials:
        from rlsched_agents.dials.training_ranges import familiar_to

        sources = [one.train for one in data]
        familiar = familiar_to(found.strategy, found.policy, sources, recipe.drawn, seed)
        found = msgspec.structs.replace(
            found, strategy=msgspec.structs.replace(found.strategy, familiar=familiar)
        )
    is_file = out.suffix == ".toml"
    written = found.write(out if is_file else out / POLICY_FILE) if found.is_better else []
    uses = [use for one in data for use in one.uses]
    held_out = [source for one in data for source in one.confirmation]
    habits = (
        habits_of(found.strategy, found.policy, held_out, recipe.drawn, seed) if found.sets_dials else None
    )
    card = card_text(found, recipe, uses, seed, objective=objective, habits=habits) if written else ""
    if written:
        written.append(out.with_suffix(".md") if is_file else out / CARD_FILE)
        written[-1].write_text(card, encoding="utf-8")
    if drawing is not None:
        from rlsched_agents.dials.importance import columns_used, importance_of

        drawing.outcome(found, card)
        if columns_used(found.strategy):  # constants do not depend on columns
            drawing.importance(importance_of(found.strategy, found.policy, held_out, recipe.drawn, seed))
        if habits is not None:
            drawing.habits(habits)
    last = found.write_last(logdir / LAST) if logdir is not None else []
    if as_json:
        files = {"written": [str(path) for path in written], "last": [str(path) for path in last]}
        print_json({**found.report(), **files})
        return 0
    _print(found)
    where = f"{last[0]}, a policy as any other" if last else "not kept: give --logdir to keep them"
    print_text(f"last weights: {where}")
    print_text(f"to try: {found.advice.replace('FILE', str(out))}")
    print_text(f"{found.verdict}; {f'written to {out}' if written else 'nothing was written'}")
    return 0


class _Shown:
    """Shows the progress of a training run as text and, if there is a log folder, as curves."""

    def __init__(self, total: dict[str, int], drawing: TrainingCurves | None, progress: Progress) -> None:
        self._total, self._drawing, self._progress = total, drawing, progress
        self._bars: dict[str, object] = {}

    def show_generation(self, stage: str, generation: Generation) -> None:
        """Show a finished setting, generation or rollout of a stage."""
        total = self._total[stage]
        text = f"{generation.number} of {total}  cost {generation.cost:.4f}"
        if generation.signal is not None:
            text += f"  signal to noise {generation.signal:.2f}"
        if stage not in self._bars:
            self._bars[stage] = self._progress.begin(stage, total)
        self._progress.update(self._bars[stage], generation.number, text)
        if self._drawing is not None:
            self._drawing.add_generation(stage, generation)


def _print(found: Trained) -> None:
    """Print the comparisons with the original policy, and why cheaper results were not chosen."""
    from rlsched.terminal.show import console, print_table, print_text

    rows = [(name, "choose", one) for name, one in (*found.tried.items(), *found.chosen.items())]
    if found.confirmed is not None:
        rows.append((found.stage, "confirm", found.confirmed))
    narrow = console().width < NARROW
    counted = "energy" if all(one.money is None for _, _, one in rows) else "money"
    print_table(
        "Relative to the original policy; below 1 is better",
        ("what", "windows" if narrow else "windows to", "cost", "delay", counted, "better in"),
        [
            (
                name,
                what,
                str(one.cost),
                *(_figure(figure, narrow) for figure in (one.delay, one.energy_or_money)),
                f"{one.cost.better_frac:.0%}",
            )
            for name, what, one in rows
        ],
        whole=True,
        note="a wider terminal and --json also show the intervals of delay and energy" if narrow else "",
    )
    for stage in found.stopped:
        click.echo(f"{stage}: stopped early: no significant gradient signal")
    for sentence in found.why_not:
        print_text(sentence)


def _figure(figure: object, narrow: bool) -> str:
    """Return a ratio as text, without its interval if the terminal is narrow."""
    return str(figure).partition(" ")[0] if narrow else str(figure)
