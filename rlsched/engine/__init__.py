"""External engines: through a gateway, the broker decides and a Slurm cluster carries out the decisions.

facts.py     state of a Slurm cluster: jobs, nodes and partitions, without I/O
reader.py    queries Slurm by its commands, and never writes to it
rest.py      queries Slurm by its slurmrestd
rights.py    checks whether this user can write to Slurm
partitions.py  nodes of Slurm's partitions, and GPUs that other jobs use
writer.py    the only module that writes to Slurm
gateway.py   the state machine between Slurm and broker, without I/O; its parts share a `Desk`:
desk.py      shared state: Slurm's last facts (state at one query), the attempts, and the outgoing messages
  offers.py    offers held jobs to the broker, and withdraws offers
  attempts.py  follows attempts that the broker ordered, until the broker has received their ends
  placing.py   writes an attempt to Slurm, or stops the attempt
  ordering.py  if Slurm places jobs: sets nices by the broker's queue, and reports the jobs that Slurm starts
  nodes.py     registers nodes, sends heartbeats, and reports GPUs that other jobs use
  silence.py   releases held jobs to Slurm's own scheduling while no broker decides
orders.py    the gateway's state of an attempt, and of an offered job
steps.py     outputs of the gateway, and its times
gateway_loop.py  socket and clock of the gateway
fallback.py  releases held jobs to Slurm's own scheduling if no broker decides, or if rlsched is removed
job_submit.lua  holds jobs at their submission, inside slurmctld
"""
