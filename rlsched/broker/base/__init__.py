"""What every room of the broker uses: the facts of the journal, times, non-fatal errors."""
