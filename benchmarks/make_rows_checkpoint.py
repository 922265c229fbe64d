"""Train the network of `ppo` again and write checkpoints/default: `rlsched train-rows` on weighted traces.

    .venv/bin/python benchmarks/make_rows_checkpoint.py                 # under 15 minutes on two idle cores
    .venv/bin/python benchmarks/make_rows_checkpoint.py --timesteps 100000 --out /tmp/try

Trains on the training parts (first 70 % of the time) of the real traces in RLSCHED_DATA (default ../shared),
with causal predictions, and of synthetic traces with informative predictions; keeps the
best policy by validation. `benchmarks/training_data.py` lists the traces; the card has the split of
each. Resumable: the same command with --resume.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.fixed_sequence import REFERENCE, run_sequence, write_sequence
from benchmarks.training_data import Lesson, default_data
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError, RlschedError
from rlsched_agents.ppo.recipes import load_recipe
from rlsched_agents.ppo.training import RunFiles

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Train, validate, write."""
    arguments = parse()
    if arguments.sequence:
        return note_sequence(arguments.out)
    shared = Path(os.environ.get("RLSCHED_DATA", ROOT.parent / "shared")) / "traces"
    if not shared.is_dir():
        raise InputError(f"{shared}: no traces here; set RLSCHED_DATA to the folder that holds traces/")
    recipe = load_recipe(arguments.recipe)
    lesson = Lesson.of(default_data(shared, arguments.seed), recipe, arguments.seed)
    result = lesson.train(
        name="default",
        timesteps=arguments.timesteps,
        files=RunFiles(logdir=arguments.logdir, out=arguments.out),
        seed=arguments.seed,
        resume=arguments.resume,
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
            f"  {name:14s} queueing {ratio:.3f} x the rule that it follows, wins {wins:.2f}, "
            f"cost with models {cost:.3f}"
        )
    return 130 if result.stopped else 0


def note_sequence(folder: Path) -> int:
    """Record the checkpoint's result on the fixed sequence."""
    found = run_sequence(load_scheduler(f"ppo:{folder}"))
    write_sequence(folder, found)
    print(f"{folder}: on the fixed sequence queueing {found.ratio:.3f} x {REFERENCE}")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--timesteps", type=int, default=1_000_000, help="decisions [default: %(default)s]")
    parser.add_argument("--recipe", default="reserving", help="recipe or .toml [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logdir", type=Path, default=ROOT / "runs" / "default")
    parser.add_argument("--out", type=Path, default=ROOT / "checkpoints" / "default")
    parser.add_argument(
        "--sequence",
        action="store_true",
        help="train nothing: record the result of --out on the fixed sequence",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run of --logdir")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
