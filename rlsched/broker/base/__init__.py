"""Modules that all packages of the broker share: journal facts, job states, time-outs, non-fatal errors."""
