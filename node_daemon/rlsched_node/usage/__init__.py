"""What ranks and GPUs of this node use: one sampler, a second a step, on a thread that may get stuck.

processes.py    a rank's processes: CPU, memory, waiting for storage, by control group or `/proc`
energy.py       what a GPU drew, shared out among the ranks on it
sums.py         readings of a span as one `RankUsage`
books.py        all of this of all ranks: readings in, usage out, without a thread or a clock
meter.py        the thread
"""
