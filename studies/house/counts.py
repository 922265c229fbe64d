"""Counts of undesired constructs in the source, as a table.

    .venv/bin/python -m studies.house.counts              # ten seconds
    .venv/bin/python -m studies.house.counts --json       # with the places

All except one are found by `ast`, by names and without running anything:

- *Loops that move the clock.* A function moves the clock of a simulated run if it reads `X.now_s` and assigns
  it again (X is not `self`), or calls such a function outside of a loop. Counted are functions with a loop
  that calls such a function by its name.
- *Bodies that decide an instant.* Kernels outside of the rules that call `next_move`, or
  `rlsched_envs.sim.moves.start`, in their own loop.
- *Adapter classes.* Classes in rlsched/decide with a method `decide` that set `self.rule`.
- *Probes.* `getattr` and `hasattr` of a scheduler or a policy, by the name of its variable.
- *Index constants.* Whole numbers, and columns of a schema, that a module names in capitals and uses
  as subscripts.
- *Spellings of policies.* Texts in tests, and quotes or arguments of `--policy` in pages, that are a
  preset's name followed by `:` or `+` and more; not counted are a path or a name after `ppo:`, and texts that
  the product refuses (their tests, and the table of replacements).
- *Circles of imports.* Strongly connected modules; imports inside functions and only for types count.
  Rooms are folders and modules of one folder, where a folder stands for all modules in it.

*Files that a trace row passes* is measured: a trace of six jobs is read, replayed by `easy` with records, and
the files with a called function are counted. Kernels run as Python for this. Functions that only make and
read the cluster are left out, as they see no row. A reader meets the files in four stretches: reading and
checking the trace, predictions included (6); the simulator's events (6); the state with its ledger (11); the
rule with its record (19). Models, shared plans and dials are not among them: a run without these does not
call their functions. The target of 35 is missed by seven, for three reasons. Users' own rules and schedulers
import five small modules by name (`move`, `options`, `start`, `scheduler`, `recording` in rlsched/decide). A
rule is a module, so that `easy` passes two. And mergers that remain would join steps with different users,
such as a store's segments with its tables, or go beyond 400 lines.
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
    """One line: the counted construct, its places, and the target."""

    what: str
    places: list[str]
    most: int

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return len(self.places) <= self.most


COUNTED: Final[tuple[tuple[str, Callable[[], list[str]], int], ...]] = (
    ("loops that move the clock", in_source.clock_loops, 4),
    ("bodies that decide an instant", in_source.deciding_bodies, 1),
    ("adapter classes", in_source.adapters, 1),
    ("probes", in_source.probes, 0),
    ("index constants", in_source.index_constants, 59),
    ("spellings of policies that are no presets", in_source.spellings, 0),
    ("files that a trace row passes", row_files, 35),
    ("modules in circles of imports", in_source.circles, 0),
    ("rooms in circles of imports", in_source.rooms_in_circles, 0),
    ("files in the largest folder", in_source.largest_folder, 25),
)


def counts() -> list[Count]:
    """All counts."""
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
