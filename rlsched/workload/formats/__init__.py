"""Original formats of trace publishers, one file per format, each converted into a `Trace`."""
