"""Replay a trace under several policies, and compare them.

python examples/replay_and_compare.py                      # draws a trace
python examples/replay_and_compare.py t.csv.gz c.toml      # uses your trace
"""

import sys

import rlsched as rs

if len(sys.argv) == 3:
    trace, cluster = rs.Trace.read(sys.argv[1]), rs.Cluster.read(sys.argv[2])
else:
    trace, cluster = rs.synthesize("helios", jobs=2000, load=0.9, gpus=64, predictability="informative")

ours = rs.Policy("easy", order="area^0.7", reserve_after="30m")
policies = {"fifo": "fifo-backfill", "qssf": "qssf-backfill", "ours": ours, "tuned": "tuned"}
runs = rs.simulate(trace, cluster, policies)

print(runs.compare(baseline="qssf"))
for name, run in runs.items():
    waited_h = run.jobs.queue_s[run.jobs.num_gpus >= 8] / 3600
    print(f"{name}: jobs of 8 GPUs and more wait {waited_h.mean():.1f} h")

runs.to_json("runs.json", baseline="qssf")
runs["ours"].jobs.write("ours.csv")
print(f"\nwrote runs.json and ours.csv; as a file, our policy is\n{ours.toml}")
