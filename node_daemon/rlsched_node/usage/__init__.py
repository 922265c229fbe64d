"""Usage of this node's ranks and GPUs, read once a second on a thread that a driver may block.

processes.py    usage by a rank's processes: CPU, memory, storage stalls, from its control group or `/proc`
energy.py       energy of a GPU, divided among the ranks on it
sums.py         readings of a period as one `RankUsage`
books.py        usage of all ranks, computed from readings, without a thread or a clock
meter.py        the thread
"""
