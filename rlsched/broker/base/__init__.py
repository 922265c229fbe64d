"""Modules that all packages of the broker share: journal entries, job states, time-outs, non-fatal errors."""
