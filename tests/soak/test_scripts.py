"""Damaged job scripts: read, or refused in one line, without growing memory."""

from __future__ import annotations

import resource
from pathlib import Path
from random import Random

import click
import pytest

from rlsched.cli.shared.job_options import dependencies, exported, time_s, when_s
from rlsched.cli.users.batch_script import directives
from rlsched.cli.users.submit import submit
from rlsched.client.array_text import tasks_of
from rlsched.errors import InputError
from tests.soak.test_frames import damaged
from tests.support.soak_size import times

SCRIPTS = times(100_000)
MAX_GROWTH_KIB = 32 << 10
LINES = (
    "#SBATCH --job-name=resnet -N2 --mem 3G\n#RLSCHED --preemptible\n",
    "#SBATCH -t 1-12:30:00\n#SBATCH --gres=gpu:a100:2\n\n# said\n#SBATCH --exclusive\n",
    "#SBATCH -J 'a b' --output=\"x%j\" # more\n#SBATCH --dependency=afterok:17:18\necho\n#SBATCH -N1\n",
    "#RLSCHED --env A=1 --begin now+1h --array=0-9%3\n#SBATCH --export=ALL,B=2\n",
)


@pytest.mark.soak
def test_damaged_scripts_are_read_or_refused_in_one_line() -> None:
    chance = Random(2)
    read = refused = lines = 0
    before_kib = 0
    for number in range(SCRIPTS):
        if number == SCRIPTS // 10:
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        text = damaged(chance.choice(LINES).encode(), chance).decode(errors="replace")
        try:
            directives(Path("job.sh"), ["#!/bin/sh", *text.splitlines()], submit)
            read += 1
        except InputError as error:
            refused += 1
            lines += 1 + str(error).count("\n")
    assert read + refused == SCRIPTS
    assert lines == refused, "one line each"
    assert min(read, refused) > SCRIPTS // 50, "both occur"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MAX_GROWTH_KIB


@pytest.mark.soak
def test_damaged_files_and_options_are_refused_as_on_the_command_line(tmp_path: Path) -> None:
    chance, path = Random(3), tmp_path / "job.sh"
    submitted, said = 0, list[str]()
    for _ in range(3_000):
        path.write_bytes(damaged(b"#!/bin/sh\n" + chance.choice(LINES).encode() + b"true\n", chance))
        try:
            with submit.make_context("submit", [str(path), "x"]):
                submitted += 1
        except (InputError, click.UsageError) as error:
            said.append(str(error))
    assert submitted > 100
    assert len(said) > 100
    assert "\n" not in "".join(said)


@pytest.mark.soak
def test_damaged_words_of_options_are_refused_in_one_line() -> None:
    chance = Random(4)
    words = (
        (time_s, ("1-12:30:00", "90m", "UNLIMITED")),
        (lambda text: when_s("--begin", text, 1e9), ("now+1hour", "16:00", "2026-11-01T13:30")),
        (dependencies, ("afterok:17:18,singleton",)),
        (lambda text: exported(text, {"A": "1"}), ("ALL,B=2", "NONE")),
        (tasks_of, ("0-99:3,5%8",)),
    )
    said = []
    for read, texts in words:
        for _ in range(times(5_000)):
            text = damaged(chance.choice(texts).encode(), chance).decode(errors="replace")
            try:
                read(text)
            except InputError as error:
                said.append(str(error))
    assert all(line.startswith("--") and "\n" not in line for line in said)
