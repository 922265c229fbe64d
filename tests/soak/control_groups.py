"""Tests of the limits of jobs, on a separate kernel whose control groups have controllers.

python -m tests.soak.control_groups [TEST ...]

Some machines and containers mount the controllers of cgroup v1, so that cgroup v2 has none of them. User-mode
Linux (Debian: `apt-get install user-mode-linux`) is a kernel that runs as a process. It uses the files of
this machine, and its cgroup v2 has the controllers cpu, io, memory and pids. It has one processor, so it has
no controller cpuset.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PROGRAM: Final = "linux.uml"
ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ("tests/integration/test_node_limits.py", "tests/integration/test_hostile_jobs.py")
MEMORY: Final = "4G"
_INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs {folder}/tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
echo "controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
cd {root}
TMPDIR={folder}/tmp RLSCHED_ALLOW_ROOT=1 {words}
echo $? > {folder}/code
sync
echo o > /proc/sysrq-trigger
sleep 60
"""


def lacking() -> str:
    """Missing requirements of this machine, "" if none."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed (Debian: user-mode-linux)"
    return "" if os.geteuid() == 0 else f"the file system of {PROGRAM} needs root"


def run_tests(tests: Sequence[str], *, timeout_s: float) -> tuple[int, str]:
    """Run tests by pytest under User-mode Linux. Return the exit code of pytest, and all output.

    Raises:
        subprocess.TimeoutExpired: the tests did not end in time.
    """
    words = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "--color=no",
        "-p",
        "no:cacheprovider",
        "-m",
        "not soak",
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)  # jobs of other accounts use it
        (folder / "tmp").mkdir()
        init = folder / "init"
        init.write_text(_INIT.format(folder=folder, root=ROOT, words=shlex.join((*words, *tests))))
        init.chmod(0o755)
        kernel = (PROGRAM, f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "rw", f"init={init}", "quiet")
        ended = subprocess.run(
            (*kernel, "con=null", "con0=null,fd:1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
        code = folder / "code"
        return int(code.read_text()) if code.exists() else 1, ended.stdout


def main() -> int:
    """Run the tests, and print their output."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.control_groups", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS, help="arguments of pytest")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    options = parser.parse_args()
    if lacking():
        print(f"skipped: {lacking()}", file=sys.stderr)
        return 0
    code, output = run_tests(options.tests, timeout_s=options.timeout_s)
    print(output)
    return code


if __name__ == "__main__":
    sys.exit(main())
