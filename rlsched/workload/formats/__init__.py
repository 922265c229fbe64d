"""Original formats of trace publishers, one file a format, each turned into a `Trace`."""
