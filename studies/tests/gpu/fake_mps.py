"""A shell script that replaces NVIDIA's MPS control program and records its commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SCRIPT = """#!/bin/sh
# Stands for nvidia-cuda-mps-control: records its commands and the place of its pipes.
if [ "$1" = -f ]; then
  echo "start $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY $CUDA_VISIBLE_DEVICES" >> "$MPS_CALLS"
  [ "$MPS_TRAIT" = dies ] && exit 3
  trap 'echo terminated >> "$MPS_CALLS"; exit 0' TERM
  : > "$CUDA_MPS_PIPE_DIRECTORY/control"
  while [ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.02; done
  echo ended >> "$MPS_CALLS"
  exit 0
fi
read -r command
if [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]; then
  echo "Cannot find MPS control daemon process" >&2
  exit 1
fi
echo "$command" >> "$MPS_CALLS"
case "$command" in
  get_server_list) echo 4001 ;;
  "get_client_list 4001") printf '11\\n12\\n' ;;
  quit) [ "$MPS_TRAIT" = deaf ] || rm "$CUDA_MPS_PIPE_DIRECTORY/control" ;;
esac
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fake first on PATH. Returns the file of its recorded calls.

    MPS_TRAIT makes it misbehave: `dies` exits at once, `deaf` ignores quit.
    """
    program = folder / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(SCRIPT)
    program.chmod(0o755)
    file = folder / "calls"
    file.touch()
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPS_CALLS", str(file))
    return file


def recorded_commands(calls: Path) -> list[str]:
    """Recorded commands, without the polls during start-up."""
    lines = [line.split()[0] for line in calls.read_text().splitlines()]
    return [line for line in lines if line != "get_server_list"]
