"""Processes of jobs: start under a shim, records on disk, output, health checks."""
