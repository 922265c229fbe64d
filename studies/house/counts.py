"""How many of what the house wants few of: a table, counted in the source itself.

    .venv/bin/python -m studies.house.counts              # ten seconds
    .venv/bin/python -m studies.house.counts --json       # with the places

All but one are found by `ast`, by names and without running anything:

- *Loops that move the clock.* A function moves the clock of a simulated run if it reads `X.now_s` and assigns
  it again (X is not `self`), or calls one that does outside of a loop. Counted are functions with a loop in
  which such a one is called by its name.
- *Bodies that decide an instant.* Kernels outside of the rules that call `next_move`, or
  `rlsched_envs.sim.moves.start`, in a loop of their own.
- *Adapter classes.* Classes in rlsched/decide with a method `decide` that set `self.rule`.
- *Probes.* `getattr` and `hasattr` of a scheduler or a policy, by what its variable is called.
- *Index constants.* Whole numbers, and columns of a schema, that a module names in capitals, and that
  something is subscripted with.
- *Spellings of policies.* Texts in tests, and what pages quote or write behind `--policy`, that are a
  preset's name with `:` or `+` and more behind it; a path or a name behind `ppo:` is none, and what the
  product refuses (the tests of just that, the table of what to write instead) is none either.
- *Circles of imports.* Strongly connected modules; imports inside functions and for types alone count. Rooms
  are folders and modules of one folder, where a folder stands for all modules in it.

*Files that a trace row passes* is measured: a trace of six jobs is read, replayed by `easy` with records, and
the files are counted of which a function was called on the way. Kernels run as Python for this. Functions
that make and read the cluster alone call too are left out; they see no row. Twenty cannot be reached with
files that one can read: those of now hold 9,800 lines, so there are forty at least with 250 lines in each. A
reader meets them in four stretches: reading and checking the trace, the simulator's events, the state with
its ledger, the rule with its record. What is left above forty are files of one step with several users, such
as rlsched/decide/move.py. What had one user and under sixty lines is merged with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from studies.house import in_source
from studies.house.trace_row import row_files


class Count(NamedTuple):
    """One line: what is counted, where there are any, and how many there may be."""

    what: str
    places: list[str]
    most: int

    @property
    def holds(self) -> bool:
        """Whether there are no more than there may be."""
        return len(self.places) <= self.most


COUNTED: Final[tuple[tuple[str, Callable[[], list[str]], int], ...]] = (
    ("loops that move the clock", in_source.clock_loops, 4),
    ("bodies that decide an instant", in_source.deciding_bodies, 1),
    ("adapter classes", in_source.adapters, 1),
    ("probes", in_source.probes, 0),
    ("index constants", in_source.index_constants, 59),
    ("spellings of policies that are no presets", in_source.spellings, 0),
    ("files that a trace row passes", row_files, 20),
    ("modules in circles of imports", in_source.circles, 0),
    ("rooms in circles of imports", in_source.rooms_in_circles, 0),
    ("files in the largest folder", in_source.largest_folder, 25),
)


def counts() -> list[Count]:
    """All of them."""
    return [Count(what, find(), most) for what, find, most in COUNTED]


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="with the places")
    arguments, found = parser.parse_args(), counts()
    if arguments.json:
        each = [
            {"what": one.what, "now": len(one.places), "target": one.most, "places": one.places}
            for one in found
        ]
        print(json.dumps(each, indent=1))
        return 0
    print("| what | now | target |\n|---|---:|---:|")
    for one in found:
        missed = "" if one.holds else ", **missed**"
        print(f"| {one.what} | {len(one.places)} | {one.most} at most{missed} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
