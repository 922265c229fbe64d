"""`rlsched train-rows`: trains PPO to choose the next job, for research."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import PATH, QUIET, seed_option, shown
from rlsched_agents.cli.learned_from import LearnedFrom, learned_from, make_writable, recipe_option
from rlsched_agents.cli.used_logdir import check_logdir, clear, overwriting

if TYPE_CHECKING:
    from rlsched_agents.ppo.confirming import Verdict
    from rlsched_agents.ppo.training import RunFiles

EXIT_INTERRUPTED = 130


@click.command("train-rows")
@learned_from("informative")
@click.option(
    "--timesteps",
    required=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Decisions to train on, including earlier parts of a resumed run.",
)
@click.option(
    "--logdir",
    required=True,
    type=PATH,
    metavar="DIR",
    help="Folder for TensorBoard logs and for checkpoints/last.zip, which --resume loads.",
)
@click.option(
    "--out",
    required=True,
    type=PATH,
    metavar="CHECKPOINT",
    help="Policy to write: a .zip file, or a folder that also gets a CARD.md.",
)
@click.option("--init", type=PATH, metavar="CHECKPOINT", help="Start from the weights of this checkpoint.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the run in --logdir. Loads its files: use it only with files you trust.",
)
@overwriting
@seed_option("Random seed of weights, episodes and draws.")
@shown(
    "--runs",
    default=1,
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of runs, with seeds from --seed up; the best by validation is written.",
)
@recipe_option(
    "Hyperparameters: default, quick, mixture, reserving, growing, large, steady, smoke, or a .toml file."
)
@shown(
    "--threads",
    default=1,
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads of torch; more than one helps only on an idle machine.",
)
@click.option(
    "--no-validation", is_flag=True, help="Keep the last policy instead of the best one by validation."
)
@QUIET
def train_rows(
    given: LearnedFrom,
    *,
    timesteps: int,
    logdir: Path,
    out: Path,
    init: Path | None,
    resume: bool,
    overwrite: bool,
    seed: int,
    runs: int,
    recipe: str,
    threads: int,
    no_validation: bool,
    quiet: bool,
) -> int:
    """Train PPO to choose the next job (research).

    The policy chooses the next row of a list of jobs. No training was ever confirmed to be better than the
    rule that it starts from. Use `rlsched train` for production: it trains the prices (dials) that affect all
    decisions.

    Each trace is split by time: the first 70 % for training, the next 10 % for validation, the last 20 % are
    kept for testing. At intervals, the policy and the heuristics run on the first half of the validation
    part. The best policy is written if the second half confirms that it beats the initial policy, otherwise
    the initial policy is written. Ctrl-C saves; --resume continues exactly where the run stopped.

    \b
    Example:
      rlsched train-rows --trace t.csv.gz --cluster c.toml --timesteps 50000 --logdir runs/1 --out 1.zip
      rlsched train-rows --synthetic helios --timesteps 1000000 --logdir runs/synth --out runs/synth.zip
      tensorboard --logdir runs
    """
    from rlsched.errors import InputError

    given.check()
    if resume and init is not None:
        raise InputError("give --init or --resume, not both: a resumed run has its own weights")
    if runs > 1 and no_validation:
        raise InputError("--runs chooses by validation: leave out --no-validation, or give one run")
    check_logdir(logdir, resume=resume, overwrite=overwrite)

    import rlsched
    from rlsched_agents.ppo.ranges import met_in
    from rlsched_agents.ppo.recipes import load_recipe
    from rlsched_agents.ppo.seeds import begun, files_of, note_init, noted_init, train_seeds
    from rlsched_agents.ppo.training import RunFiles, TrainingResult, first_weights
    from rlsched_agents.ppo.training import train as run
    from rlsched_agents.runtime.checkpoint import load_checkpoint

    chosen, files = load_recipe(recipe), RunFiles(logdir=logdir, out=out)
    if resume:
        if runs > 1 and not any(own.logdir.exists() for own in files_of(files, seed, runs).values()):
            raise InputError(
                f"--resume: expected a training of --runs {runs} from --seed {seed} on in {logdir}, found "
                "none of its folders seed-K; give its original --runs and --seed, or another --logdir"
            )
        init = noted_init(files, seed, runs)
    if (origin := begun(files, seed, runs) if resume and init is None else init) is not None:
        checkpoint = load_checkpoint(origin)
        chosen = chosen.going_on(checkpoint.card.network, str(origin))
        first_weights(checkpoint, chosen)  # raises before anything is written
    data = given.read(seed, quiet=quiet)
    for folder in (logdir, out.parent if out.suffix == ".zip" else out):
        make_writable(folder)
    if overwrite:
        clear(logdir)
    if not resume:
        note_init(files, seed, runs, init)

    from datetime import UTC, datetime

    from rlsched_agents.ppo.validation import Validator, cut_windows
    from rlsched_agents.runtime.card import Card
    from rlsched_envs.training.vector import RowsVecEnv

    card = Card(
        name=out.stem,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlsched_version=rlsched.__version__,
        schema_hash="",
        network=chosen.network,
        timesteps=0,
        seeds=(seed,),
        traces=tuple(use for one in data for use in one.uses),
        familiar=met_in(chosen.episode, [one.train for one in data]),
    )
    validator = confirmer = None
    if not no_validation:
        validator = Validator(cut_windows([part for one in data for part in one.validation], chosen, seed))
        confirming = [part for one in data for part in one.confirmation]
        confirmer = Validator(cut_windows(confirming, chosen, seed)) if confirming else None

    def train_one(own_seed: int, own_files: RunFiles, own_resume: bool) -> TrainingResult:
        venv = RowsVecEnv(
            [one.train for one in data],
            chosen.num_envs,
            seed=own_seed,
            config=chosen.episode,
            copy=False,
            oracle=True,
        )
        try:
            return run(
                venv,
                chosen,
                timesteps=timesteps,
                files=own_files,
                seed=own_seed,
                card=card,
                validate=validator,
                confirm=confirmer,
                init=noted_init(files, seed, runs),
                resume=own_resume,
                threads=threads,
                progress=not quiet,
            )
        finally:
            venv.close()

    result = train_seeds(train_one, seed, runs, files, chosen.tolerated_loss_frac, resume=resume)
    if not quiet:
        _report(result.card.validation, result.card.temperature)
        click.echo(
            f"{out}: policy of decision {result.card.timesteps:,} of {result.timesteps:,}, "
            f"{result.steps_per_s:,.0f} decisions a second"
        )
        click.echo(f"last weights: {_last_weights(files, result.card.seeds[0], seed, runs)}")
    if result.stopped:
        click.echo(
            f"stopped; continue with the same command and --resume (it reads {files.last_snapshot})", err=True
        )
        return EXIT_INTERRUPTED
    if not quiet:
        click.echo(f"to try: {_advice(result.verdict, out)}")
        click.echo(_confirmed(result.verdict, init))
    return 0


def _last_weights(files: RunFiles, kept: int, first: int, runs: int) -> str:
    from rlsched_agents.ppo.seeds import files_of

    last = files_of(files, first, runs)[kept].last_snapshot
    return f"{last} (`--policy ppo:PATH` serves them, --resume continues)"


def _advice(verdict: Verdict | None, out: Path) -> str:
    """Return a text that advises the user on the next step."""
    if verdict is None:
        return (
            "a longer trace, or no --no-validation: a policy is confirmed only on windows that were not used "
            "to choose it"
        )
    if verdict.better:
        return (
            f"`rlsched evaluate --policy ppo:{out}` on jobs outside the training data, then `rlsched policy "
            f"set ppo:{out}`"
        )
    return (
        "more --timesteps, another --recipe (mixture, steady), or --runs 3; or `rlsched train`, which tunes "
        "settings and dials of a rule"
    )


def _confirmed(verdict: Verdict | None, init: Path | None) -> str:
    """Return a text that describes the result on the confirmation windows."""
    if verdict is None:
        return "whether it beats the rule is not known: there were no windows to confirm it"
    began = f"the policy of {init}" if init is not None else "the reference rule, from which it started"
    scores = f"{verdict.score:.3f} against {verdict.start_score:.3f}, lower is better"
    if verdict.better:
        return f"confirmed on held-out windows: better than {began} ({scores})"
    return f"not better than {began} on held-out windows ({scores}): the initial policy was kept"


def _report(table: dict[str, dict[str, float]], temperature: float) -> None:
    """Print the validation table of the written policy."""
    if not table:
        return
    from rlsched.terminal.show import print_table

    served = "arg max" if temperature == 0 else f"temperature {temperature:g}"
    print_table(
        f"Validation (served by {served})",
        ("policy", "queueing mean", "queueing p99", "JCT mean", "utilisation", "queueing x reference"),
        [
            (
                name,
                f"{row['queue_mean_s']:,.0f} s",
                f"{row['queue_p99_s']:,.0f} s",
                f"{row['jct_mean_s']:,.0f} s",
                f"{100 * row['gpu_utilisation_frac']:.1f} %",
                f"{row['queue_ratio_frac']:.3f}",
            )
            for name, row in table.items()
        ],
    )
