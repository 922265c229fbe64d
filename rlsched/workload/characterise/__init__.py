"""The numbers that characterise a trace, a file a subject; `rlsched.workload.describe` puts them together."""
