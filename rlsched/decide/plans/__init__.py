"""Compiled plans: the ways to start a waiting job now, the worth of each way, and the best plan.

A plan combines GPUs, the jobs that share them, a GPU type, an SM clock and CPU cores. The *worth* of
a plan is the speed that it adds, in GPUs at work: 1 on free GPUs; with co-tenants, the job's own speed less
the speed that the co-tenants lose. If rules choose GPU types, the worth is multiplied by the worth of a GPU
of the plan's type to the job. The worth of *later* (waiting for better GPUs) is the worth of the best GPUs
that become free, times the share of the time until completion in which the job runs.

The modules `plan` and `shared` compute the worth of one plan, `best` compares plans, and `decide.recording`
writes all plans to a record. Rules call `best`, so that a record shows exactly the plans that were compared.
"""
