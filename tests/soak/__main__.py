"""`python -m tests.soak sweep --rounds 100`: exit code 1 where anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.sweep import Sweep


def main() -> int:
    """Run a trial, a line a round."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="each shoots something once or more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--dir", type=Path, help="where to keep everything; left out: a folder, removed after"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        sweep = Sweep(args.dir or Path(made), args.seed, say=lambda line: print(line, flush=True))
        try:
            for number in range(args.rounds):
                sweep.round(number)
        finally:
            sweep.close()
    found = sweep.outcome
    print(f"{found.shots} shots, {found.jobs} jobs acknowledged, {len(found.faults)} faults")
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(main())
