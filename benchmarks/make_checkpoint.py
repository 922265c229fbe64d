"""`make checkpoint`: train the shipped policy again: other settings and a strategy for the rule `tuned`.

    .venv/bin/python benchmarks/make_checkpoint.py                  # under 40 minutes on two cores
    .venv/bin/python benchmarks/make_checkpoint.py --recipe quick   # options of `rlsched train`
    .venv/bin/python benchmarks/make_checkpoint.py --resume

It runs `rlsched train` on the training parts of the real traces in RLSCHED_DATA (default ../shared), or on
synthetic ones if they are missing. It writes checkpoints/tuned.toml, its strategy and its card only if
the result is confirmed to be better than `tuned`; so far it was not, and `tuned` ships unchanged.
benchmarks/make_rows_checkpoint.py makes the network of `ppo`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.training_data import REAL, SYNTHETIC
from rlsched.cli.main import run

ROOT = Path(__file__).resolve().parent.parent


def words(more: Sequence[str]) -> list[str]:
    """The command line of `rlsched`, followed by these options."""
    shared = Path(os.environ.get("RLSCHED_DATA", ROOT.parent / "shared")) / "traces"
    out = ROOT / "checkpoints" / "tuned.toml"
    said = ["train", "--logdir", str(ROOT / "runs" / "tuned"), "--out", str(out)]
    if all((shared / f"{name}.csv.gz").is_file() for name in REAL):
        for name in REAL:
            said += ["--trace", str(shared / f"{name}.csv.gz")]
            said += ["--cluster", str(shared / f"{name}.cluster.toml")]
    else:
        print(f"{shared}: no traces here; training on synthetic ones (RLSCHED_DATA)", file=sys.stderr)
        for like in SYNTHETIC:
            said += ["--synthetic", like]
    said += [] if "--resume" in more else ["--overwrite"]
    return [*said, *more]


if __name__ == "__main__":
    raise SystemExit(run(words(sys.argv[1:])))
