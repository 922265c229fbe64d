"""Isolation of jobs: users, control groups, devices, limits."""
