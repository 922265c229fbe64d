"""Print the differences between a case and the same case in an earlier commit: element, field and time.

    python -m tests.golden.explain table/helios/plain/easy
    python -m tests.golden.explain table/helios/plain/easy --against HEAD~3

The default of `--against` is the commit that the kept hash comes from. It is run in a separate folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np

from tests.golden.cases import Content, cases, digest
from tests.golden.hashes import FILE, kept

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 5
WHEN = {
    "job": "start_s",
    "attempt": "start_s",
    "record": "now_s",
    "again.record": "now_s",
}
"""By prefix, the array with the time of each element."""


def differences(before: Content, after: Content) -> list[str]:
    """A line for each array that differs, in order of the first differing instant."""
    found: list[tuple[float, str]] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            found.append((-np.inf, f"{name}: {'new' if name in after else 'gone'}"))
            continue
        one, other = before[name], after[name]
        if one.shape != other.shape:
            found.append((-np.inf, f"{name}: {len(one)} before, {len(other)} now"))
        rows = min(len(one), len(other))
        same = _same(one[:rows], other[:rows]).reshape(rows, -1).all(axis=1)
        which = np.flatnonzero(~same)
        if not len(which):
            continue
        when = _when(name, before, after)
        order = which[np.argsort(when[which], kind="stable")] if when is not None else which
        for k in order[:SHOWN].tolist():
            at_s = float(when[k]) if when is not None else float(k)
            instant = f" at {at_s:g} s" if when is not None else ""
            found.append((at_s, f"{name}[{k}]{instant}: {_show(one[k], other[k])}"))
        if len(order) > SHOWN:
            found.append((np.inf, f"{name}: {len(order)} of {rows} differ"))
    return [line for _, line in sorted(found, key=lambda one: one[0])]


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | ((one != one) & (other != other))


def _when(name: str, before: Content, after: Content) -> np.ndarray | None:
    """(rows,) time of each element of an array, the earlier of both; None for arrays without times."""
    prefix = name.rpartition(".")[0]
    key = f"{prefix}.{WHEN[prefix]}" if prefix in WHEN else ""
    if key not in before or key not in after:
        return None
    rows = min(len(before[key]), len(after[key]))
    return np.nan_to_num(np.fmin(before[key][:rows], after[key][:rows]), nan=np.inf)


def _show(one: np.ndarray, other: np.ndarray) -> str:
    if np.ndim(one) == 0:
        return f"{one} before, {other} now"
    first = tuple(np.argwhere(~_same(one, other))[0].tolist())
    return f"at {list(first)} {one[first]} before, {other[first]} now"


def origin(name: str) -> str:
    """The commit that the kept hash of a case comes from."""
    kept_hash = kept()[name]
    command = ["git", "log", "--format=%H", f"-S{kept_hash}", "--", str(FILE)]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return found[-1] if found else "HEAD"


def content_of(commit: str, name: str, folder: Path) -> Content:
    """The content of a case in a commit, computed by its own files."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    _declare(folder)
    paths = [str(folder / part) for part in ("", "envs", "agents", "node_daemon")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "tests.golden.explain", name, "--dump", str(folder / "content.npz")]
    subprocess.run(command, cwd=folder, check=True, env=environment)
    return dict(np.load(folder / "content.npz"))


def _declare(folder: Path) -> None:
    """Give the files the entry points of their own project file, before the installed ones."""
    points = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "rlsched-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlsched\nVersion: 0\n", encoding="utf-8")
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and explain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="CASE", choices=list(cases()), help="such as table/helios/plain/easy")
    parser.add_argument("--against", metavar="COMMIT", help="default: where the kept hash comes from")
    parser.add_argument(
        "--dump", metavar="FILE", help="write this tree's content as .npz, and compare nothing"
    )
    arguments = parser.parse_args()
    here = cases()[arguments.name]()
    if arguments.dump:
        np.savez(arguments.dump, **here)
        return
    commit = arguments.against or origin(arguments.name)
    print(
        f"{arguments.name}: {digest(here)[:16]} here, {kept()[arguments.name][:16]} kept; "
        f"against {commit[:12]}"
    )
    with tempfile.TemporaryDirectory() as folder:
        lines = differences(content_of(commit, arguments.name, Path(folder)), here)
    print("\n".join(lines) if lines else "nothing differs")


if __name__ == "__main__":
    main()
