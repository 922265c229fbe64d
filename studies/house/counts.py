"""Counts of undesired constructs in the source, as a table.

    .venv/bin/python -m studies.house.counts                  # one minute
    .venv/bin/python -m studies.house.counts --now            # half of it: without the column «was»
    .venv/bin/python -m studies.house.counts --commit REV     # the column «was» of another commit
    .venv/bin/python -m studies.house.counts --json           # with the places

All except one are found by `ast`, by names and without running anything, so the files of another commit are
counted by the same code. The files of a trace row need the product: for another commit, its own
`studies.house` counts them, and a commit without it has no number.

- *Loops that move the clock.* A function moves the clock of a simulated run if it reads `X.now_s` and assigns
  it again (X is not `self`), or calls such a function outside of a loop. Counted are functions with a loop
  that calls such a function by its name.
- *Bodies that decide an instant.* Kernels outside of the rules that call `next_move`, or
  `rlsched_envs.sim.moves.start`, in their own loop.
- *Adapter classes.* Classes in rlsched/decide with a method `decide` that set `self.rule`.
- *Probes.* `getattr` and `hasattr` of a scheduler or a policy, by the name of its variable.
- *Index constants.* Whole numbers that a module names in capitals and uses as subscripts; at a commit that
  still has columns of a schema, these too.
- *Circles of imports.* Strongly connected modules; imports inside functions and only for types count.
  Rooms are folders and modules of one folder, where a folder stands for all modules in it.
- *Rooms and arrows of a package.* Folders and modules right below it that import each other; an arrow is a
  pair of rooms of which the first imports the second.
- *Names of several things.* Names of files without `__init__.py`; names of classes, nested ones included.
- *Literals of states.* Texts that are a state of a job or a rank (`rlsched/wire/states.py`), outside of the
  modules that define states. The ones left are the same word in another meaning: a state of another thing (a
  training, an attempt of a trace), a status that a publisher writes, a key or heading of a report, a field of
  a state array, a tag of a message.
- *Fields of a state with a literal.* Fields `state`, `outcome` and `ending` that are compared with, matched
  with, or set to such a text in the place of a name of `rlsched/wire/states.py`.
- *Lines.* Of `.py` files of the product and of its tests, and of pages; by folder.

*Files that a trace row passes* is measured: a trace of six jobs is read, replayed by `easy` with records, and
the files with a called function are counted. Kernels run as Python for this. Functions that only make and
read the cluster are left out, as they see no row. A reader meets the files in four stretches: reading and
checking the trace, predictions included (6); the simulator's events (8); the state with its ledger (11); the
rule with its record (19). Models, shared plans and dials are not among them: a run without these does not
call their functions. The target of 35 is missed by nine, for three reasons. Users' own rules and schedulers
import five small modules by name (`move`, `options`, `start`, `scheduler`, `recording` in rlsched/decide). A
rule is a module, so that `easy` passes two. And mergers that remain would join steps with different users,
such as a store's segments with its tables, or go beyond 400 lines.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlsched.errors import InputError
from studies.house import extent, in_source
from studies.house.trace_row import row_files

BEFORE: Final = "0f2d2ea"
"""The commit with which the counts are compared by default: before the rooms of the broker."""
TOP: Final = Path(__file__).resolve().parents[2]
IN_PRODUCT: Final = (row_files,)
"""Counts that run the product."""

Places = list[str] | dict[str, int]
"""Places, or the number in each folder."""


class Count(NamedTuple):
    """One line: the counted construct, its places, the target, and the number at another commit."""

    what: str
    places: Places
    most: int | None = None
    was: int | None = None

    @property
    def now(self) -> int:
        """Number of places with the construct."""
        return number(self.places)

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.most is None or self.now <= self.most

    def cells(self) -> tuple[str, str, str, str]:
        """The line of the table."""
        missed = "" if self.holds else ", missed"
        target = "" if self.most is None else f"{self.most:,} at most{missed}"
        return self.what, "-" if self.was is None else f"{self.was:,}", f"{self.now:,}", target


def number(places: Places) -> int:
    """Return the number of places."""
    return sum(places.values()) if isinstance(places, dict) else len(places)


COUNTED: Final[tuple[tuple[str, Callable[[], Places], int | None], ...]] = (
    ("loops that move the clock", in_source.clock_loops, 2),
    ("bodies that decide an instant", in_source.deciding_bodies, 1),
    ("adapter classes", in_source.adapters, 1),
    ("probes", in_source.probes, 0),
    ("index constants", in_source.index_constants, 9),
    ("files that a trace row passes", row_files, 35),
    ("modules in circles of imports", in_source.circles, 0),
    ("rooms in circles of imports", in_source.rooms_in_circles, 0),
    ("files in the largest folder", in_source.largest_folder, 25),
    *(
        (f"{what} of {package}", partial(find, package), None)
        for package in extent.ROOMS
        for what, find in (("rooms", extent.rooms), ("arrows", extent.arrows))
    ),
    ("file names of several files", extent.files_of_one_name, None),
    ("public class names of several classes", extent.public_classes_of_one_name, None),
    ("private class names of several classes", extent.private_classes_of_one_name, None),
    ("fields of a state with a literal", extent.states_as_literals, 0),
    ("literals of states", extent.state_literals, None),
    ("files with literals of states", extent.files_of_state_literals, None),
    ("library lines", extent.library_lines, None),
    ("library lines of code", extent.code_lines, None),
    ("test lines", extent.lines_of_tests, None),
    ("docs lines", extent.lines_of_docs, None),
)


def counts(before: dict[str, int | None] | None = None) -> list[Count]:
    """All counts, with the numbers of another commit."""
    return [Count(what, find(), most, (before or {}).get(what)) for what, find, most in COUNTED]


def counts_at(commit: str) -> dict[str, int | None]:
    """Numbers at another commit; None: it has no code that can count this.

    Raises:
        InputError: git has no such commit.
    """
    with _files_of(commit) as tree, in_source.reading(tree):
        return {
            what: _in_product(find, tree) if find in IN_PRODUCT else number(find())
            for what, find, _ in COUNTED
        }


@contextmanager
def _files_of(commit: str) -> Iterator[Path]:
    """The files of a commit, in a temporary folder."""
    git = ["git", "-C", str(TOP)]
    known = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if known.returncode:
        raise InputError(f"a commit of this repository was expected, not {commit!r}: see `git log --oneline`")
    archive = subprocess.run(
        [*git, "archive", "--format=tar", known.stdout.strip()], capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder).resolve()


def _in_product(find: Callable[[], Places], tree: Path) -> int | None:
    """A count that runs the product, by the commit's own `studies.house`."""
    module, name = find.__module__, find.__qualname__
    if not (tree / module.replace(".", "/")).with_suffix(".py").is_file():
        return None
    program = f"from {module} import {name}; print('counted', len({name}()))"
    parts = [tree, *(tree / package for package in ("envs", "agents", "node_daemon"))]
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts))},
        capture_output=True,
        text=True,
        check=False,
    )
    words = run.stdout.split()
    return int(words[-1]) if run.returncode == 0 and words[-2:-1] == ["counted"] else None


def table(found: list[Count]) -> str:
    """All counts as lines of equal width."""
    rows = [("what", "was", "now", "target"), *(one.cells() for one in found)]
    if all(one.was is None for one in found):
        rows = [(what, "", *others) for what, _, *others in rows]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        return (
            "| "
            + " | ".join(
                text.rjust(size) if 0 < at < 3 else text.ljust(size)
                for at, (text, size) in enumerate(zip(row, wide, strict=True))
                if size
            )
            + " |"
        )

    rule = (
        "|"
        + "|".join("-" * (size + 1) + (":" if 0 < at < 3 else "-") for at, size in enumerate(wide) if size)
        + "|"
    )
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def as_json(found: list[Count]) -> list[dict[str, Any]]:
    """All counts with their places."""
    return [
        {"what": one.what, "was": one.was, "now": one.now, "target": one.most, "places": one.places}
        for one in found
    ]


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", metavar="REV", default="", help=f"compare with it [default: {BEFORE}]")
    parser.add_argument("--now", action="store_true", help="compare with no commit")
    parser.add_argument("--json", action="store_true", help="with the places")
    arguments, before = parser.parse_args(), dict[str, int | None]()
    try:
        before = {} if arguments.now else counts_at(arguments.commit or BEFORE)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        if arguments.commit:
            return 2
    found = counts(before)
    print(json.dumps(as_json(found), indent=1) if arguments.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
