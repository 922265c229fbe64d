"""The commands and the Python of the README run unchanged, in an empty folder, in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ports import free_addresses

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
DEADLINE_S = 180.0
BACKGROUND = re.compile(r"&\s*(#.*)?$")
READER = """echo $! >> pids
until rlsched nodes >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done"""
"""After a line that ends with `&`, a reader waits until the cluster reports that it is ready."""


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        body
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        if language in languages
    ]


def is_make(block: str) -> bool:
    """Whether a block of shell consists only of `make`."""
    return all(line.startswith("make ") for line in block.splitlines())


class Reader:
    """A user with a shell in an empty folder."""

    def __init__(self, folder: Path) -> None:
        (address,) = free_addresses(1)
        self.folder = folder
        self.environment = {**os.environ, "RLSCHED_HOME": str(folder / "home"), "RLSCHED_BROKER": address}
        self.shells: list[subprocess.Popen[bytes]] = []

    def shell(self, block: str) -> str:
        """Output of a shell block; its background processes keep running."""
        lines = block.replace(".venv/bin/", f"{BIN}/").replace("\\\n", " ").splitlines()
        script = [f"{line}\n{READER}" if BACKGROUND.search(line) else line for line in lines]
        over, log = self.folder / "over", self.folder / "shell.log"
        words = ["bash", "-e", "-c", "\n".join([*script, "touch over", "wait"])]
        with log.open("wb") as output:
            shell = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        self.shells.append(shell)
        deadline = time.monotonic() + DEADLINE_S
        while not over.exists():
            assert shell.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        over.unlink()
        return log.read_text()

    def python(self, block: str) -> str:
        """Output of a Python block."""
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leave(self) -> None:
        """End the background processes."""
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
        for shell in self.shells:
            shell.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A user who has a `train.py`."""
    (tmp_path / "train.py").write_text("import os; print('on GPUs', os.environ['CUDA_VISIBLE_DEVICES'])\n")
    one = Reader(tmp_path)
    yield one
    one.leave()


@pytest.mark.slow
def test_the_blocks_run_in_order(reader: Reader) -> None:
    said = "".join(reader.shell(block) for block in blocks("README.md", "", "sh") if not is_make(block))
    assert re.search(r"^ tuned +2,000 +0 ", said, re.M)
    assert "ready: 2 nodes x 4 GPUs" in said
    assert re.search(r"^on GPUs \d,\d$", said, re.M)
    assert "): completed" in said

    pages = blocks("README.md", "python"), blocks("docs/reference/python.md", "python")
    assert [len(page) for page in pages] == [1, 1]
    for (block,) in pages:
        said = reader.python(block)
        assert "ratios to qssf" in said
        assert "completed job" in said
        assert len((reader.folder / "jobs.csv").read_text().splitlines()) == 2001
        (reader.folder / "jobs.csv").unlink()


def test_make_targets_exist() -> None:
    asked = [block for block in blocks("README.md", "", "sh") if is_make(block)]
    targets = re.findall(r"^make (\w+)", "\n".join(asked), re.M)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
