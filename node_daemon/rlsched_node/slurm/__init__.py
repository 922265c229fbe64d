"""Slurm's programs in jobs of scripts with `#SBATCH` lines: `srun` and `scontrol show hostnames`.

As under Slurm, such a script runs on the first node of its job, and `srun` starts steps: commands that run as
one or more tasks on the job's nodes. All processes run as the job's user, outside the node daemon:

    batch.py      the command of each rank: the script with the steps' server, or an agent
    server.py     the server on the first node: plans steps, relays output, input and signals
    steps.py      the server's state of steps and nodes
    agent.py      the connection of another node to the server
    tasks.py      the tasks on one node, used by the server's node and by agents
    srun.py       client of the server, in the script or in a task
    scontrol.py   expands lists of nodes
    plans.py      chooses the nodes of a step, and the IDs and GPUs of its tasks
    options.py    options of `srun`
    outputs.py    files for the output of tasks
    names.py      names or addresses at which other nodes reach a node
    hostlist.py   Slurm's notation of lists of nodes
    frames.py     messages over TCP
    key.py        the key of the job, which authenticates messages
    loop.py       waits for descriptors and times

The isolated interpreter runs these files, so they import only the standard library and each other.
"""
