"""File formats of trace publishers; one module per format converts the publisher's files to a `Trace`."""
