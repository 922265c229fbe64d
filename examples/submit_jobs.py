"""Submit jobs from Python, wait for them, and read their output. Needs a running cluster: `rlsched up`.

rlsched up --nodes 2 --gpus 4 &
python examples/submit_jobs.py
"""

import sys

import rlsched as rs

SCRIPT = "import os; print('trial', os.environ['TRIAL'], 'on GPUs', os.environ['CUDA_VISIBLE_DEVICES'])"

with rs.Client() as client:
    trials = [
        client.submit([sys.executable, "-c", SCRIPT], num_gpus=2, name=f"trial-{k}", env={"TRIAL": str(k)})
        for k in range(4)
    ]
    for job in trials:
        done = client.wait(job)
        output = b"".join(client.log(job)).decode().strip()
        print(f"job {job} {done.state} on {', '.join(done.nodes)}: {output}")
    print(client.why(trials[-1]))
