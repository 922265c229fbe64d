"""Modules that all packages of the broker use: journal entries, job states, time-outs, non-fatal errors."""
