"""Processes of jobs, each under a shim (a process that outlives the daemon); output, health checks."""
