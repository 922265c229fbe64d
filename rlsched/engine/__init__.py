"""Other people's engines: a gateway lets the broker decide, and a Slurm carry it out.

facts.py     what a Slurm says: its jobs, nodes and partitions, without I/O
reader.py    asks it, and never writes
writer.py    the one object through which every write goes
gateway.py   the state machine between Slurm and broker, without I/O; its parts share the desk:
  desk.py      the last look, the attempts, what is to be said
  offers.py    held jobs, offered to the broker and withdrawn
  attempts.py  what the broker ordered, followed until it has the end
  placing.py   an attempt is written to Slurm, or stopped
  ordering.py  without placement: nices by the broker's queue, and what Slurm starts is told
  nodes.py     nodes register, beat, and say which GPUs others have
  silence.py   nobody decides: what is held goes to Slurm's own order
orders.py    what the gateway knows of an attempt, and of a job that it has offered
steps.py     what comes out of it, and its times
serve.py     socket and clock around it
fallback.py  held jobs go back to Slurm's own order: nobody decides, or rlsched is removed
job_submit.lua  holds jobs at their submission, inside slurmctld
"""
