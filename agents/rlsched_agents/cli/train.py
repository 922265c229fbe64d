"""`rlsched train`: find settings and dials of a policy that pay, on jobs of the past, and say by how much."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rlsched_agents.cli.learned_from import FILE, LearnedFrom, learned_from, make_writable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rlsched_agents.dials.evolution import Generation
    from rlsched_agents.dials.verdict import Trained

EXIT_INTERRUPTED = 130


@click.command()
@learned_from("causal")
@click.option(
    "--policy",
    default="tuned",
    show_default=True,
    metavar="P",
    help="The policy to do better than: a preset, or a TOML file. Its own strategy, if any, is left out.",
)
@click.option(
    "--out",
    required=True,
    type=FILE,
    metavar="POLICY",
    help="Policy to write (.toml), beside a card (.md) and, if it sets dials, a strategy (.json) of the same "
    "name; only where it is confirmed to be better.",
)
@click.option("--logdir", type=FILE, metavar="DIR", help="Folder for TensorBoard and for --resume.")
@click.option("--resume", is_flag=True, help="Go on with the training of --logdir.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), metavar="K")
@click.option(
    "--recipe",
    default="default",
    show_default=True,
    metavar="NAME",
    help="default, quick (a fifth of that), smoke (to see that it runs), or a .toml.",
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes. [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="What came of it as JSON.")
@click.option("--quiet", is_flag=True, help="No progress.")
def train(
    given: LearnedFrom,
    *,
    policy: str,
    out: Path,
    logdir: Path | None,
    resume: bool,
    seed: int,
    recipe: str,
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Find a policy for your jobs: other settings, and a strategy that sets dials by the state.

    Histories and traces are cut by time: windows of the first 70 % teach, later ones choose, and windows of a
    last stretch say, once, what was found is worth against the policy as it is. Of a --history the last 20 %
    confirm; of a --trace 5 % choose, 5 % confirm, and the last 20 % are left for testing. The last line says
    in words what came out. After Ctrl-C, --resume goes on where --logdir was given.

    \b
    Example:
      rlsched train --history sacct.csv --cluster c.toml --logdir runs/mine --out mine.toml
      rlsched train --synthetic helios --recipe quick --out mine.toml
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy tuned --policy mine.toml
    """
    from rlsched.errors import InputError

    given.check()
    if out.suffix != ".toml":
        raise InputError(f"--out {out}: expected a name that ends in .toml: a policy is TOML")
    if resume and logdir is None:
        raise InputError("--resume goes on with the training of --logdir: give that, too")

    import msgspec

    from rlsched.cli.show import print_json
    from rlsched.decide.policy import Policy
    from rlsched_agents.dials.card import card_text
    from rlsched_agents.dials.familiar import familiar_to
    from rlsched_agents.dials.lesson import Lesson
    from rlsched_agents.dials.recipes import load_recipe
    from rlsched_agents.dials.training import CONSTANTS, FOLLOWING, SETTINGS, STATE_FILE, Training

    chosen, rule = load_recipe(recipe), Policy.of(policy).with_settings(dials="")
    rule.rule  # noqa: B018 - an error now, before anything is read
    make_writable(out.parent)
    data = given.read(seed, quiet=quiet)
    chosen, asked = chosen.fitted(data), chosen.drawn.jobs
    if chosen.drawn.jobs < asked and not quiet:
        click.echo(f"windows of {chosen.drawn.jobs:,} jobs, not {asked:,}: there are few jobs", err=True)
    training = Training(
        Lesson.of(data, chosen, rule, seed),
        chosen,
        seed,
        state_file=logdir / STATE_FILE if logdir is not None else None,
        workers=workers,
    )
    total = {
        SETTINGS: len(chosen.others(rule)),
        CONSTANTS: chosen.constants.generations,
        FOLLOWING: chosen.following.generations,
    }
    with _Shown(total, logdir, quiet=quiet) as shown:
        try:
            found = training.run(shown.tell, resume=resume)
        except KeyboardInterrupt:
            again = "go on with the same command and --resume" if logdir else "nothing was kept: no --logdir"
            click.echo(f"stopped; {again}", err=True)
            return EXIT_INTERRUPTED
    if found.is_better and found.sets_dials:
        sources = [one.train for one in data]
        familiar = familiar_to(found.strategy, found.policy, sources, chosen.drawn, seed)
        found = msgspec.structs.replace(
            found, strategy=msgspec.structs.replace(found.strategy, familiar=familiar)
        )
    written = found.write(out) if found.is_better else []
    if written:
        written.append(out.with_suffix(".md"))
        uses = [use for one in data for use in one.uses]
        written[-1].write_text(card_text(found, chosen, uses, seed), encoding="utf-8")
    if as_json:
        print_json({**found.report(), "written": [str(path) for path in written]})
        return 0
    _print(found)
    click.echo(f"{found.verdict}; {f'written to {out}' if written else 'nothing was written'}")
    return 0


class _Shown:
    """Progress: a bar on a terminal, a line every ten seconds elsewhere, curves where there is a folder."""

    def __init__(self, total: dict[str, int], logdir: Path | None, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._total, self._quiet, notes = total, quiet, Console(stderr=True, highlight=False)
        self._is_terminal, self._printed_s = notes.is_terminal, 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total}  {task.fields[note]}"),
            TimeElapsedColumn(),
            console=notes,
            transient=True,
            disable=quiet or not notes.is_terminal,
        )
        self._tasks: dict[str, object] = {}
        self._logdir, self._writer = logdir, cast("SummaryWriter | None", None)

    def __enter__(self) -> _Shown:
        self._bars.start()
        if self._logdir is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._logdir))
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        if self._writer is not None:
            self._writer.close()

    def tell(self, stage: str, generation: Generation) -> None:
        """One more generation of a stage."""
        import time

        note = f"cost {generation.cost:.4f}"
        if generation.signal is not None:
            note += f"  signal to noise {generation.signal:.2f}"
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=self._total[stage], note=note)
        self._bars.update(self._tasks[stage], completed=generation.number, note=note)  # type: ignore[arg-type]
        now_s = time.monotonic()
        last = generation.number == self._total[stage]
        if not self._quiet and not self._is_terminal and (last or now_s - self._printed_s >= 10.0):
            self._printed_s = now_s
            print(f"{stage} {generation.number} of {self._total[stage]}  {note}", file=sys.stderr, flush=True)
        if self._writer is not None:
            self._writer.add_scalar(f"{stage}/cost_frac", generation.cost, generation.number)
            if generation.signal is not None:
                self._writer.add_scalar(f"{stage}/signal_to_noise", generation.signal, generation.number)


def _print(found: Trained) -> None:
    """What was chosen, and what it was worth where nothing was chosen."""
    from rlsched.cli.show import print_table

    rows = [(name, "choose", one) for name, one in (*found.tried.items(), *found.chosen.items())]
    if found.confirmed is not None:
        rows.append((found.stage, "confirm", found.confirmed))
    print_table(
        "Over the policy as it is, below 1 is better",
        ("what", "windows that", "cost", "delay", "energy", "better in"),
        [
            (name, what, str(one.cost), str(one.delay), str(one.energy), f"{one.cost.better_frac:.0%}")
            for name, what, one in rows
        ],
    )
    for stage in found.stopped:
        click.echo(f"{stage}: ended early, for its pairs told nothing of where to go")
