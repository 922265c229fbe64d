"""Original file formats of trace publishers: one module per format converts its files into a `Trace`."""
