"""A Markdown table of one `rlsched evaluate --json FILE`: every policy against the baseline.

.venv/bin/python -m studies.policy.baselines_table out.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HEAD = "| policy | JCT mean, s | ratio | queue mean, s | ratio | queue p99, s | longest, s | preemptions |"
RULE = "|---|---:|---:|---:|---:|---:|---:|---:|"


def ratio(found: dict[str, Any] | None) -> str:
    """A ratio with its interval, where there is one."""
    if found is None or found["ratio"] is None:
        return ""
    if found["low"] is None:
        return f"{found['ratio']:.2f}"
    return f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def table(report: dict[str, Any]) -> list[str]:
    """What was run, and a row a policy."""
    window = f"submitted from {report['since_s']:,.0f} s on" if report["since_s"] else "the whole trace"
    lines = [
        f"{report['trace']}, {window}: {report['nodes']} nodes, {report['gpus']} GPUs, load "
        f"{report['load_frac']:.2f}, seeds {', '.join(map(str, report['seeds']))}; ratios to "
        f"`{report['baseline']}` with 95 % intervals over days.",
        "",
        HEAD,
        RULE,
    ]
    for name, one in report["policies"].items():
        paired = report["paired"].get(name, {})
        lines.append(
            f"| `{name}` | {one['jct_mean_s']:,.0f} | {ratio(paired.get('jct_mean_ratio'))} | "
            f"{one['queue_mean_s']:,.0f} | {ratio(paired.get('queue_mean_ratio'))} | "
            f"{one['queue_p99_s']:,.0f} | {one['queue_max_s']:,.0f} | {one['preemptions'] or ''} |"
        )
    return lines


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, nargs="+", help="files of `rlsched evaluate --json`")
    for path in parser.parse_args().report:
        print("\n".join([*table(json.loads(path.read_text(encoding="utf-8"))), ""]))


if __name__ == "__main__":
    main()
