"""A dial is declared once: the ledger, setter, reset, files, environment and reference follow `DIALS`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from rlsched.broker.state import base_ledger
from rlsched.cluster.dials import COUNTED, DIAL, DIALS
from rlsched.decide.dials.turning import RANGES

ROOT = Path(__file__).parents[3]
ONE_MORE = """
import importlib.util, json, sys
from pathlib import Path

import numpy as np

spec = importlib.util.find_spec("rlsched.cluster.dials")
source = Path(spec.origin).read_text()
line = 'Dial("extra", 5.0, "s", "added to nothing"),'
wider = source.replace("DIALS: Final = (", f"DIALS: Final = ({line}", 1)
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(wider, spec.origin, "exec"), vars(module))

from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.dials.counting import reset_dials
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES, set_dials
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched_envs.training.actions import spaces

nodes = [NodeSpec(name="n0", gpus=8), NodeSpec(name="n1", gpus=8, vc="a")]
state = ClusterState(nodes, OrderedQueue(Order()), slots=8)
strategy = Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
strategy.check("strategy")
state.set_dials(strategy.arrays(2))
dial = state.arrays.dials.dial
dial.due[:] = 1
set_dials.py_func(state.arrays, 1, np.full(NUM_DIALS, 0.5))
held = {name: dial[name].tolist() for name in RANGES}
due = dial.due.tolist()
reset_dials.py_func(state.arrays)
print(json.dumps({
    "fields": dial.dtype.names,
    "ranges": list(RANGES.items()),
    "file": strategy.dials,
    "action": spaces()[1].shape,
    "held": held,
    "due": due,
    "reset": [float(dial[name].sum()) for name in dial.dtype.names],
}))
"""


def test_a_line_of_the_table_is_a_whole_dial() -> None:
    """With a line more at the top of the table, all that follows from it has one dial more."""
    run = subprocess.run([sys.executable, "-c", ONE_MORE], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    found, ranges = json.loads(run.stdout), {"extra": 5.0, **RANGES}
    assert found["fields"] == ["extra", *(DIAL.names or ())]
    assert dict(found["ranges"]) == ranges
    assert found["file"] == list(ranges)
    assert found["action"] == [len(ranges)]
    assert found["held"] == {name: [0.0, 0.5 * span] for name, span in ranges.items()}
    assert found["due"] == [1, 1], "the setter changes only dials"
    assert not any(found["reset"])


def test_the_reference_has_the_table() -> None:
    rows = [f"| `{dial.name}` | ±{dial.range:g} | {dial.unit} | {dial.effect} |" for dial in DIALS]
    table = "\n".join(["| dial | range | unit | effect |", "|---|---|---|---|", *rows, ""])
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert f"\n\n{table}\n" in page, f"docs/reference/environment.md: expected this table:\n{table}"
    assert f"`Box(-1, 1, ({len(DIALS)},), float32)`" in page


def test_the_ledger_has_fields_of_eight_bytes() -> None:
    """`set_dials` and `reset_dials` address them as one row of numbers."""
    for dtype, kinds in ((DIAL, {np.float64, np.int64}), (COUNTED, {np.float64})):
        fields = [dtype[name].base.type for name in dtype.names or ()]
        assert set(fields) == kinds
        assert dtype.itemsize == 8 * sum(int(np.prod(dtype[k].shape)) for k in range(len(fields)))
    assert (DIAL.names or ())[: len(DIALS)] == tuple(dial.name for dial in DIALS)


def test_journals_keep_the_names_of_counters() -> None:
    """A base of a journal holds the counters by these names, whatever the ledger calls them."""
    assert list(base_ledger._COUNTED) == list(COUNTED.names or ())
    assert list(base_ledger._COUNTED.values()) == [
        *("jobs", "gpu_s", "noted_s", "first_s", "ended", "ended_s"),
        *("said", "took", "said_square", "took_square", "said_took"),
    ]
