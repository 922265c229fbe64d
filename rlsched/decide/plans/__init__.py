"""Whole plans: every way to start a waiting job now, what it is worth, and the best of them; compiled.

A plan is a place, the jobs that share its GPUs, a GPU type, an SM clock and CPU cores together. What it is
*worth* is the speed that it adds, in GPUs at work: on free GPUs that is 1, with co-tenants its own speed less
what they lose. Where types are chosen this is multiplied by what a GPU of that type is worth to the job.
*Later* is worth what the best place is that comes free, less the share of the time that it is waited for.

`alone` and `shared` price one plan each, `best` compares them, `listing` writes down all of them for a
record. Rules ask `best`, so that a record shows what was compared.
"""
