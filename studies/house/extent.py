"""Rooms and arrows of a package, names of several things, literals of states, and numbers of lines."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from studies.house import in_source
from studies.house.in_source import PACKAGES, imported_pairs, last_name, nodes, room, sources

STATES: Final = frozenset(
    {"queued", "launching", "running", "completed", "failed", "cancelled", "rejected", "ended"}
)
"""States of jobs and ranks, `rlsched/wire/states.py`; that they agree is tested."""
DEFINED: Final = frozenset({"rlsched.wire.states", "rlsched.broker.base.states"})
"""Modules that define states and their transitions."""
FIELDS: Final = frozenset({"state", "outcome", "ending"})
"""Fields that hold a state of a job or a rank."""
NO_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)


def rooms(package: str) -> list[str]:
    """Folders and modules right below a package that import each other."""
    return sorted({end for pair in _arrows(package) for end in pair})


def arrows(package: str) -> list[str]:
    """Imports between the rooms of a package, one for each pair and direction."""
    return [f"{one} -> {other}" for one, other in sorted(_arrows(package))]


def _arrows(package: str) -> set[tuple[str, str]]:
    found = {(room(one, package), room(other, package)) for one, other in imported_pairs()}
    return {(one, other) for one, other in found if one and other and one != other}


def files_of_one_name() -> list[str]:
    """Names of several files, with their folders."""
    found: dict[str, list[str]] = {}
    for path, _ in sources().values():
        if path.name != "__init__.py":
            found.setdefault(path.name, []).append(path.relative_to(in_source.ROOT).parent.as_posix())
    return _several(found)


def public_classes_of_one_name() -> list[str]:
    """Public names of several classes, with their modules."""
    return _several({name: where for name, where in _classes().items() if not name.startswith("_")})


def private_classes_of_one_name() -> list[str]:
    """Private names of several classes, with their modules."""
    return _several({name: where for name, where in _classes().items() if name.startswith("_")})


def _classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module, (_, tree) in sources().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return found


def _several(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(sorted(where))}" for name, where in sorted(places.items()) if len(where) > 1]


def state_literals() -> list[str]:
    """Texts that are a state of a job or a rank, and no part of a longer text."""
    return [
        f"{path.relative_to(in_source.ROOT)}:{node.lineno}: {node.value}"
        for module, (path, tree) in sources().items()
        if module not in DEFINED
        for node in _texts(tree)
        if node.value in STATES
    ]


def states_as_literals() -> list[str]:
    """Fields of a state that are compared with, matched with, or set to a literal."""
    return sorted(
        {
            f"{path.relative_to(in_source.ROOT)}:{text.lineno}: {text.value}"
            for module, (path, tree) in sources().items()
            if module not in DEFINED
            for node in nodes(tree)
            for value in _values_of_states(node)
            for text in ast.walk(value)
            if isinstance(text, ast.Constant) and text.value in STATES
        }
    )


def _values_of_states(node: ast.AST) -> list[ast.AST]:
    """Values that this comparison, call, pattern or assignment has for a field of a state."""
    match node:
        case ast.Compare() if any(last_name(side) in FIELDS for side in (node.left, *node.comparators)):
            return [node.left, *node.comparators]
        case ast.Call():
            return [one.value for one in node.keywords if one.arg in FIELDS]
        case ast.MatchClass():
            pairs = zip(node.kwd_attrs, node.kwd_patterns, strict=True)
            return [pattern for name, pattern in pairs if name in FIELDS]
        case ast.Assign() if any(last_name(target) in FIELDS for target in node.targets):
            return [node.value]
        case ast.AnnAssign() if last_name(node.target) in FIELDS and node.value is not None:
            return [node.value]
    return []


def files_of_state_literals() -> list[str]:
    """Files of these texts."""
    return sorted({place.partition(":")[0] for place in state_literals()})


def _texts(tree: ast.Module) -> list[ast.Constant]:
    parts = {id(part) for node in nodes(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    every = [node for node in nodes(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    texts = [node for node in every if isinstance(node.value, str)]
    return sorted(texts, key=lambda node: (node.lineno, node.col_offset))


def library_lines() -> dict[str, int]:
    """Lines of the product's `.py` files, by folder."""
    return _by_folder(path for path, _ in sources().values())


def code_lines() -> dict[str, int]:
    """Return the lines of the product by folder, without docstrings, comments and blank lines."""
    found: dict[str, int] = {}
    for path, tree in sources().values():
        folder = path.relative_to(in_source.ROOT).parent.as_posix()
        found[folder] = found.get(folder, 0) + _code_lines(path, tree)
    return found


def _code_lines(path: Path, tree: ast.Module) -> int:
    text, lines = path.read_text(encoding="utf-8"), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(text := node.value, ast.Constant):
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def lines_of_tests() -> dict[str, int]:
    """Lines of the product's tests, by folder."""
    return _by_folder(in_source.ROOT.glob("tests/**/*.py"))


def lines_of_docs() -> dict[str, int]:
    """Lines of the pages, by folder."""
    return _by_folder(in_source.ROOT.glob("docs/**/*.md"))


def _by_folder(paths: Iterable[Path]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in sorted(paths):
        folder = path.relative_to(in_source.ROOT).parent.as_posix()
        found[folder] = found.get(folder, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return found


ROOMS: Final = (
    *("rlsched", "rlsched.broker", "rlsched.decide"),
    *(package.rpartition("/")[2] for package in PACKAGES[1:]),
)
"""Packages whose rooms and arrows are counted."""
