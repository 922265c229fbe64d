"""Compiled plans: the ways to start a waiting job now, the worth of each way, and the best plan.

A plan combines GPUs, the jobs that share them, a GPU type, an SM clock and CPU cores. The *worth* of a plan
is the speed that it adds. On free GPUs, the worth is 1, the speed of a job without co-tenants. With
co-tenants, the worth is the job's own speed less the speed that the co-tenants lose. If a rule chooses GPU
types, the worth is multiplied by the worth of the plan's GPU type to the job. The plan *later* waits for
better GPUs. Two factors are multiplied to get its worth: the worth of the best GPUs that become free, and the
fraction of the time until completion in which the job runs.

The modules `plan` and `shared` compute the worth of one plan, `best` compares plans, and `decide.recording`
writes all plans to a record. Rules call `best`, so that a record shows exactly the plans that were compared.
"""
