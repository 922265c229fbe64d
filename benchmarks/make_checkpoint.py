"""`make checkpoint`: train the default policy anew and write checkpoints/default.

    .venv/bin/python benchmarks/make_checkpoint.py                 # under 15 minutes on two idle cores
    .venv/bin/python benchmarks/make_checkpoint.py --timesteps 100000 --out /tmp/try

Trains on the training parts (first 70 % of the time) of the real traces in RLSCHED_DATA (default ../shared),
with the predictions that can be made there, and of synthetic traces with informative predictions; keeps the
best policy by validation. Which part is which stands in the card. Resumable: the same command with --resume.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import rlsched
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.scheduler import load_scheduler
from rlsched.errors import InputError, RlschedError
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.fixed_sequence import REFERENCE, run_sequence, write_sequence
from rlsched_agents.ppo.recipes import Recipe, load_recipe
from rlsched_agents.ppo.sources import TrainingData, synthetic_data
from rlsched_agents.ppo.training import RunFiles, train
from rlsched_agents.ppo.validation import Validator, cut_windows
from rlsched_agents.runtime.card import Card
from rlsched_envs.sources import EpisodeSource
from rlsched_envs.vector import ClusterVecEnv

ROOT = Path(__file__).resolve().parent.parent
REAL = {"helios_venus": 1.0, "philly": 1.0, "ms_itp_07": 0.5}
"""Real traces and how often an episode comes from each; their predictions carry little (causal means)."""
SYNTHETIC = {"helios": 4.0, "philly": 1.5, "itp": 1.0}
"""Profiles of the generator, likewise; their predictions are informative."""


def main() -> int:
    """Train, validate, write."""
    arguments = parse()
    if arguments.sequence:
        return note_sequence(arguments.out)
    shared = Path(os.environ.get("RLSCHED_DATA", ROOT.parent / "shared")) / "traces"
    if not shared.is_dir():
        raise InputError(f"{shared}: no traces here; set RLSCHED_DATA to the folder that holds traces/")
    recipe = load_recipe(arguments.recipe)
    data = [weighted(read(shared, name), weight) for name, weight in REAL.items()]
    data += [
        weighted(synthetic_data(like, arguments.seed, "informative"), weight)
        for like, weight in SYNTHETIC.items()
    ]
    card = Card(
        name="default",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlsched_version=rlsched.__version__,
        schema_hash="",
        network=recipe.network,
        timesteps=0,
        seeds=(arguments.seed,),
        traces=tuple(use for one in data for use in one.uses),
    )
    venv = ClusterVecEnv(
        [one.train for one in data],
        recipe.num_envs,
        seed=arguments.seed,
        config=recipe.episode,
        copy=False,
    )
    result = train(
        venv,
        recipe,
        timesteps=arguments.timesteps,
        files=RunFiles(logdir=arguments.logdir, out=arguments.out),
        seed=arguments.seed,
        card=card,
        resume=arguments.resume,
        validate=validator([part for one in data for part in one.validation], recipe, arguments.seed),
        confirm=validator([part for one in data for part in one.confirmation], recipe, arguments.seed),
    )
    speed = f"{result.steps_per_s:,.0f} decisions/s"
    if result.verdict is not None:
        kept = "kept" if result.verdict.better else "not better: its start was kept"
        print(f"confirmation: {result.verdict.score:.3f}, start {result.verdict.start_score:.3f}: {kept}")
    print(f"{arguments.out}: policy of decision {result.card.timesteps:,}, {speed}")
    note_sequence(arguments.out)
    for name, row in result.card.validation.items():
        ratio, wins = row["queue_ratio_frac"], row["wins_frac"]
        cost = row.get("cost_ratio_frac", 1.0)
        print(
            f"  {name:14s} queueing {ratio:.3f} x qssf-backfill, wins {wins:.2f}, cost with models {cost:.3f}"
        )
    return 130 if result.stopped else 0


def note_sequence(folder: Path) -> int:
    """Write down what the checkpoint does on the fixed sequence."""
    found = run_sequence(load_scheduler(f"ppo:{folder}"))
    write_sequence(folder, found)
    print(f"{folder}: on the fixed sequence queueing {found.ratio:.3f} x {REFERENCE}")
    return 0


def validator(sources: Sequence[EpisodeSource], recipe: Recipe, seed: int) -> Validator:
    """What runs a policy on windows of these sources."""
    return Validator(cut_windows(sources, recipe, seed))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--timesteps", type=int, default=1_800_000, help="decisions [default: %(default)s]")
    parser.add_argument("--recipe", default="large", help="recipe or .toml [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logdir", type=Path, default=ROOT / "runs" / "default")
    parser.add_argument("--out", type=Path, default=ROOT / "checkpoints" / "default")
    parser.add_argument(
        "--sequence", action="store_true", help="train nothing: note what --out does on the fixed sequence"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run of --logdir")
    return parser.parse_args()


def read(folder: Path, name: str) -> TrainingData:
    """One real trace, cut by time."""
    return TrainingData.cut(
        Trace.read(folder / f"{name}.csv.gz"), ClusterSpec.read(folder / f"{name}.cluster.toml")
    )


def weighted(data: TrainingData, weight: float) -> TrainingData:
    """The same data, drawn `weight` times as often as one of weight 1."""
    return replace(data, train=replace(data.train, weight=weight))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
