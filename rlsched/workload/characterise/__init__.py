"""Statistics of a trace, one file per subject; `rlsched.workload.describe` combines them."""
