"""`scontrol show hostnames` in a job of a script with `#SBATCH` lines: expands lists of nodes."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node.slurm.hostlist import expanded


def main(words: list[str]) -> int:
    """Print the nodes in a list, one per line. Return the exit code."""
    is_known = len(words) in (2, 3) and words[0] == "show" and words[1] in ("hostnames", "hostname")
    if not is_known:
        print(
            f"scontrol: {' '.join(words) or 'no arguments'}: in a job, rlsched has only "
            "`scontrol show hostnames [LIST]`",
            file=sys.stderr,
        )
        return 2
    text = words[2] if len(words) == 3 else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = expanded(text)
    except ValueError as error:
        print(f"scontrol: {text!r}: {error}", file=sys.stderr)
        return 2
    if not names:
        print("scontrol: expected a list of nodes, such as n[1-3],login", file=sys.stderr)
        return 2
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
