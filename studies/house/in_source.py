"""Constructs found in the source without running it: loops, bodies, classes, names, imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("rlsched", "envs/rlsched_envs", "agents/rlsched_agents", "node_daemon/rlsched_node")
KERNELS: Final = {"kernel", "array_kernel"}
ASKED: Final = re.compile(r"scheduler|policy|fallback", re.IGNORECASE)


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the product: its file and its tree."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to((ROOT / package).parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """Context manager: count in the files below another root folder."""
    global ROOT
    before, ROOT = ROOT, root
    sources.cache_clear()
    try:
        yield
    finally:
        ROOT = before
        for one in (sources, nodes, calls, called_in_loops):
            one.cache_clear()


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all nodes below it, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function, with its module."""
    for name, (_, tree) in sources().items():
        yield from ((name, node) for node in nodes(tree) if isinstance(node, ast.FunctionDef))


@cache
def calls(node: ast.AST) -> set[str]:
    """Names of functions called by their plain name."""
    found = (one.func for one in nodes(node) if isinstance(one, ast.Call))
    return {func.id for func in found if isinstance(func, ast.Name)}


@cache
def called_in_loops(node: ast.AST) -> set[str]:
    """Return the names of functions called by their plain name inside loops."""
    return {name for one in nodes(node) if isinstance(one, ast.For | ast.While) for name in calls(one)}


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`, and of `c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def clock_loops() -> list[str]:
    """Functions with their own loop that moves the clock of a run."""

    def moves_it(node: ast.FunctionDef) -> bool:
        used = [one for one in nodes(node) if isinstance(one, ast.Attribute) and one.attr == "now_s"]
        used = [one for one in used if last_name(one.value) != "self"]
        return {type(one.ctx) for one in used} == {ast.Load, ast.Store}

    every = list(functions())
    movers, before = {node.name for _, node in every if moves_it(node)}, set[str]()
    while movers != before:
        before = set(movers)
        movers |= {
            node.name for _, node in every if movers & calls(node) and not movers & called_in_loops(node)
        }
    return [f"{module}.{node.name}" for module, node in every if movers & called_in_loops(node)]


def deciding_bodies() -> list[str]:
    """Kernels that call a rule, or start jobs, in a loop."""
    starting = {
        name
        for name, (_, tree) in sources().items()
        for one in nodes(tree)
        if isinstance(one, ast.ImportFrom) and one.module == "rlsched_envs.sim.moves"
        if any(alias.name == "start" for alias in one.names)
    }
    return [
        f"{module}.{node.name}"
        for module, node in functions()
        if any(last_name(one) in KERNELS for one in node.decorator_list) and ".rules." not in module
        if called_in_loops(node) & ({"next_move", "start"} if module in starting else {"next_move"})
    ]


def adapters() -> list[str]:
    """Classes that turn a rule into a scheduler."""
    return [
        f"{module}.{node.name}"
        for module, (_, tree) in sources().items()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef) and module.startswith("rlsched.decide.")
        if any(isinstance(one, ast.FunctionDef) and one.name == "decide" for one in node.body)
        if any(isinstance(one, ast.Attribute) and _is_own_rule(one) for one in nodes(node))
    ]


def _is_own_rule(node: ast.Attribute) -> bool:
    return node.attr == "rule" and isinstance(node.ctx, ast.Store) and last_name(node.value) == "self"


def probes() -> list[str]:
    """Places where an attribute of a scheduler or a policy is probed by name."""
    return [
        f"{module}:{node.lineno}"
        for module, (_, tree) in sources().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and last_name(node.func) in ("getattr", "hasattr")
        if ASKED.search(last_name(node.args[0])) and not module.startswith("rlsched_node")
    ]


def index_constants() -> list[str]:
    """Named numbers that are used as subscripts of arrays."""
    defined, used = set[str](), set[str]()
    for module, (_, tree) in sources().items():
        from_where = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in nodes(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                names = [last_name(name) for one in targets for name in nodes(one)]
                defined |= {f"{module}.{name}" for name in names if name and _is_index(node.value)}
        for one in nodes(tree):
            if isinstance(one, ast.Subscript):
                entries = one.slice.elts if isinstance(one.slice, ast.Tuple) else [one.slice]
                said = [name for entry in entries if (name := last_name(entry)).isupper()]
                used |= {from_where.get(name, f"{module}.{name}") for name in said}
    return sorted(defined & used)


def _is_index(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_index, node.elts))
    number = isinstance(node, ast.Constant) and type(node.value) is int
    return number or (isinstance(node, ast.Call) and last_name(node.func) in ("column", "range"))


def circles() -> list[str]:
    """Return the modules that import each other, directly or through other modules."""
    return _in_circles({name: _imported(tree) - {name} for name, (_, tree) in sources().items()})


def rooms_in_circles() -> list[str]:
    """Return rooms that import each other: modules of one folder, and folders for all modules in them."""
    imports, found = imported_pairs(), set[str]()
    for folder in {"", *(name.rpartition(".")[0] for name in sources())}:
        after: dict[str, set[str]] = {}
        for one, other in ((room(name, folder), room(other, folder)) for name, other in imports):
            if one and other and one != other:
                after.setdefault(one, set()).add(other)
                after.setdefault(other, set())
        found |= set(_in_circles(after))
    return sorted(found)


def imported_pairs() -> list[tuple[str, str]]:
    """(module, imported module) of the product; imports inside functions and only for types count."""
    return [(name, other) for name, (_, tree) in sources().items() for other in _imported(tree)]


def room(name: str, folder: str) -> str:
    """Return the folder or module right below `folder` that contains a module; "" if none does."""
    below = f"{folder}." if folder else ""
    return below + name.removeprefix(below).partition(".")[0] if name.startswith(below) else ""


def _in_circles(after: dict[str, set[str]]) -> list[str]:
    """Return the names that are on a cycle of the graph `after`."""
    reach = {name: set(others) for name, others in after.items()}
    for middle in reach:
        for name in reach:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    return sorted(name for name, others in reach.items() if name in others)


def largest_folder() -> list[str]:
    """Return the files of the folder that has the most files."""
    files: dict[Path, list[str]] = {}
    for path, _ in sources().values():
        files.setdefault(path.parent, []).append(path.relative_to(ROOT).as_posix())
    return max(files.values(), key=len)


def _imported(tree: ast.Module) -> set[str]:
    found = set[str]()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            each = {one.name: f"{node.module}.{one.name}" for one in node.names}
            found |= {inner if inner in sources() else node.module for inner in each.values()}
    return found & sources().keys()
