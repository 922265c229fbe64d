"""Processes of jobs: their launch under a shim, records on disk, output, health checks."""
