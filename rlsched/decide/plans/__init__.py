"""Compiled plans: the ways to start a waiting job now, the worth of each way, and the best plan.

A plan combines GPUs, the jobs that share them, a GPU type, an SM clock and CPU cores. The *worth* of a plan
is the speed that it adds: 1 on free GPUs; with co-tenants, the job's own speed less the speed that the
co-tenants lose. If a rule chooses GPU types, the worth is multiplied by the worth of the GPU type to the job.
The plan *later* waits for better GPUs. Its worth is the worth of these GPUs, multiplied by the fraction of
the time until completion in which the job runs.

The modules `plan` and `shared` compute the worth of one plan, `best` compares plans, and `decide.recording`
writes all plans to a record.
"""
