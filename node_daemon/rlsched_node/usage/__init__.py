"""Usage of the ranks and GPUs of this node: one sampler, once a second, on a thread that a driver may block.

processes.py    processes of a rank: CPU, memory, storage stalls, by control group or `/proc`
energy.py       energy of a GPU, divided among the ranks on it
sums.py         readings of a period as one `RankUsage`
books.py        accounts of all ranks: readings in, usage out, without a thread or a clock
meter.py        the thread
"""
