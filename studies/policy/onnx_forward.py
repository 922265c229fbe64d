"""The served forward pass in numpy against ONNX Runtime: same weights, one window at a time.

onnx and onnxruntime are needed only here; in a separate environment:

    python3 -m venv /tmp/onnx && /tmp/onnx/bin/pip install onnx onnxruntime numpy msgspec
    PYTHONPATH=.:agents /tmp/onnx/bin/python -m studies.policy.onnx_forward

Prints the median and the 99th percentile of a forward pass over windows without padding, both on one thread,
the largest difference of logits, and the cost of import and load in time and memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROWS = (2, 24, 512)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
OPSET = 18
PART = """
import time
began_s = time.perf_counter()
import numpy as np
from studies.policy.onnx_forward import {maker}
score = {maker}()
score(np.ones((24, {features}), np.float32))
took_s = time.perf_counter() - began_s
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(took_s, int(status["VmHWM"].split()[0]) * 1024 / 1e6)
"""


def by_numpy() -> Any:
    """The runtime's own: (K, F) float32 rows -> (K,) logits."""
    from rlsched_agents.runtime.checkpoint import load_checkpoint
    from rlsched_agents.runtime.forward import Forward

    found = load_checkpoint("default")
    return Forward(found.weights, found.card.network).logits


def exported() -> bytes:
    """The default checkpoint's actor in ONNX: input `rows` (K, F) float32, output `logits` (K, 1)."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from rlsched.decide.rows.columns import IS_REFERENCE, IS_VARIANT
    from rlsched_agents.runtime.checkpoint import load_checkpoint

    found = load_checkpoint("default")
    config = found.card.network
    constants = {name: array for name, array in found.weights.items() if name.startswith("actor.")} | {
        "first": np.array([0], np.int64),
        "at_reference": np.array([IS_REFERENCE], np.int64),
        "at_variant": np.array([IS_VARIANT], np.int64),
        "prior_job": np.array([config.prior_job], np.float32),
        "prior_more": np.array([config.prior_variant - config.prior_job], np.float32),
    }

    def layer(x: str, name: str, out: str) -> list[Any]:
        weights = [x, f"actor.{name}.weight", f"actor.{name}.bias"]
        return [
            helper.make_node("Gemm", weights, [f"{out}_sum"], transB=1),
            helper.make_node("Relu", [f"{out}_sum"], [out]),
        ]

    nodes = [
        *layer("rows", "row1", "hidden"),
        *layer("hidden", "row2", "encoded"),
        helper.make_node("ReduceMean", ["encoded", "first"], ["mean"], keepdims=1),
        helper.make_node("ReduceMax", ["encoded", "first"], ["most"], keepdims=1),
        helper.make_node("Concat", ["mean", "most"], ["pooled"], axis=1),
        *layer("pooled", "context", "context"),
        helper.make_node("Gemm", ["context", "actor.mix_context.weight"], ["shift"], transB=1),
        helper.make_node(
            "Gemm", ["encoded", "actor.mix_row.weight", "actor.mix_row.bias"], ["mix"], transB=1
        ),
        helper.make_node("Add", ["mix", "shift"], ["mixed_sum"]),
        helper.make_node("Relu", ["mixed_sum"], ["mixed"]),
        helper.make_node("Gemm", ["mixed", "actor.score.weight"], ["score"], transB=1),
        helper.make_node("Gather", ["rows", "at_reference"], ["is_reference"], axis=1),
        helper.make_node("Gather", ["rows", "at_variant"], ["is_variant"], axis=1),
        helper.make_node("Mul", ["is_variant", "prior_more"], ["more"]),
        helper.make_node("Add", ["more", "prior_job"], ["prior"]),
        helper.make_node("Mul", ["prior", "is_reference"], ["preferred"]),
        helper.make_node("Add", ["score", "preferred"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "actor",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["K", config.features])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["K", 1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    packed: bytes = model.SerializeToString()
    return packed


def by_onnx() -> Any:
    """ONNX Runtime on the model file MODEL, one thread: (K, F) float32 rows -> (K,) logits."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(["logits"], {"rows": rows})[0][:, 0]


def measure(count: int) -> None:
    """Print one line a number of rows: both, in alternation, on the same windows."""
    import numpy as np

    from rlsched.decide.rows.columns import IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT
    from rlsched_agents.runtime.checkpoint import load_checkpoint

    ours, theirs = by_numpy(), by_onnx()
    features = load_checkpoint("default").card.network.features
    rng = np.random.default_rng(0)
    for rows in ROWS:
        window = rng.uniform(-1, 1, (rows, features)).astype(np.float32)
        window[:, [IS_WAIT, IS_VARIANT, IS_REFERENCE]] = 0
        window[:, IS_JOB], window[0, IS_REFERENCE] = 1, 1
        apart = float(np.abs(ours(window) - theirs(window)).max())
        times: dict[str, list[float]] = {"numpy": [], "ONNX Runtime": []}
        for k in range(count + 50):
            for name, score in (("numpy", ours), ("ONNX Runtime", theirs)):
                began_s = time.perf_counter()
                score(window)
                if k >= 50:
                    times[name].append((time.perf_counter() - began_s) * 1e6)
        cells = " | ".join(f"{np.median(us):,.0f} | {np.quantile(us, 0.99):,.0f}" for us in times.values())
        print(f"| {rows:,} | {cells} | {apart:.1e} |", flush=True)


def main() -> None:
    """Read the command line, export, and measure in fresh processes with this many threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2_000, help="timed passes of each")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        measure(arguments.count)
        return
    import tempfile

    from rlsched.decide.schema import NUM_FEATURES

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "actor.onnx"
        model.write_bytes(exported())
        paths = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
        print("| rows | numpy p50, us | p99 | ONNX Runtime p50, us | p99 | apart |")
        print("|---:|---:|---:|---:|---:|---:|", flush=True)
        there = {**os.environ, **ONE_THREAD, "MODEL": str(model), "PYTHONPATH": paths}
        again = [sys.executable, __file__, "--inner", "--count", str(arguments.count)]
        subprocess.run(again, check=True, env=there)
        for maker in ("by_numpy", "by_onnx"):
            said = []
            for _ in range(6):
                code = PART.format(maker=maker, features=NUM_FEATURES)
                done = subprocess.run(
                    [sys.executable, "-c", code], check=True, env=there, capture_output=True, text=True
                )
                said.append([float(word) for word in done.stdout.split()])
            took_s, peak_mb = sorted(said[1:])[2]
            print(f"{maker}: import, load and first window {took_s:.2f} s, {peak_mb:.0f} MB")


if __name__ == "__main__":
    main()
