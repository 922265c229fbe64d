"""Find words with a plainer equivalent in docstrings, comments, messages and documents.

`python -m studies.house.prose [PATH ...]` prints `file:line: what was found, and what to write`. Exit code 1:
something was found. `words.toml` holds the list. `# prose: quoted` leaves a line out, for words that a test
or a protocol quotes.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_LIST = Path(__file__).with_name("words.toml")
_QUOTED = "prose: quoted"
_SUBJECT = re.compile(r"[a-z][a-z0-9_/.-]*(, [a-z0-9_/.-]+)*: [a-z]")
_SUBJECT_LENGTH = 60
_CODE = re.compile(r"`[^`]*`")


class Word(NamedTuple):
    """A word to avoid.

    Attributes:
        pattern: Matches it, in text whose white space may be line breaks.
        plain: The replacement.
    """

    pattern: re.Pattern[str]
    plain: str


class Finding(NamedTuple):
    """A word to avoid, at a line of a text, counted from 1."""

    line: int
    found: str
    plain: str


@cache
def words() -> tuple[Word, ...]:
    """Return the words to avoid, from `words.toml`."""
    return tuple(_word(entry) for entry in tomllib.loads(_LIST.read_text())["word"])


def left_out() -> list[Path]:
    """Return the files that are not checked, because they quote the list."""
    return [ROOT / name for name in tomllib.loads(_LIST.read_text())["quotes"]]


def in_prose(text: str, first_line: int = 1) -> Iterator[Finding]:
    """Words to avoid in a text. `first_line` is the number of its first line."""
    bare = _CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text)
    for word in words():
        for match in word.pattern.finditer(bare):
            start = match.start(1)
            yield Finding(first_line + bare.count("\n", 0, start), " ".join(match[1].split()), word.plain)


def in_python(source: str) -> Iterator[Finding]:
    """Words to avoid in docstrings, comments and messages of a module.

    A message is a string literal with a space in it.
    """
    quoted = {at for at, line in enumerate(source.split("\n"), 1) if _QUOTED in line}
    literals = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    texts = [(each.lineno, each.value) for each in literals if isinstance(each.value, str)]
    texts = [(line, text) for line, text in texts if " " in text.strip()]
    for first, text in [*texts, *_comments(source)]:
        yield from (finding for finding in in_prose(text, first) if finding.line not in quoted)


def in_markdown(text: str) -> Iterator[Finding]:
    """Words to avoid in a document, except its blocks of code."""
    kept, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        kept.append("" if fenced or fence else line)
        fenced ^= fence
    return in_prose("\n".join(kept))


def in_subject(subject: str) -> Iterator[Finding]:
    """Faults of a commit's subject: `area: imperative`, at most 60 characters, no word of the list."""
    if not _SUBJECT.match(subject) or len(subject) > _SUBJECT_LENGTH:
        yield Finding(1, subject, f"area: imperative, at most {_SUBJECT_LENGTH} characters")
    yield from in_prose(subject)


def in_file(path: Path) -> Iterator[Finding]:
    """Words to avoid in a module or a document."""
    text = path.read_text()
    return in_python(text) if path.suffix in {".py", ".pyi"} else in_markdown(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files named, or all tracked ones."""
    parser = argparse.ArgumentParser(prog="python -m studies.house.prose", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; default: all tracked files")
    asked = [path.resolve() for path in parser.parse_args(arguments).paths]
    paths = [path for path in _tracked() if not asked or any(path.is_relative_to(each) for each in asked)]
    skipped = left_out()
    found = 0
    for path in paths:
        if any(path.is_relative_to(each) for each in skipped):
            continue
        for finding in sorted(in_file(path)):
            found += 1
            print(f"{path.relative_to(ROOT)}:{finding.line}: «{finding.found}»; plain: {finding.plain}")
    if found:
        print(f"{found} words have a plainer equivalent (studies/house/words.toml)", file=sys.stderr)
    return int(bool(found))


def _word(entry: dict[str, str | bool]) -> Word:
    spaced = str(entry["pattern"]).replace(" ", r"[\s#]+")
    before = r"(?:\A|[.:;!?]\s+|\n\s*\n\s*)" if entry.get("at_start") else r"\b"
    return Word(re.compile(rf"{before}({spaced})\b", re.IGNORECASE), str(entry["plain"]))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments with the line of each; lines of comments that follow each other are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield first, "\n".join(block)
            block = []
        first = first if block else line
        block.append(token.string.lstrip("#"))
        last = line
    if block:
        yield first, "\n".join(block)


def _tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "*.py", "*.pyi", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in names.stdout.split("\n") if name and (ROOT / name).exists()]


if __name__ == "__main__":
    sys.exit(main())
