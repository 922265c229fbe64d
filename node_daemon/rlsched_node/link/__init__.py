"""The daemon's side of the broker: its link, leases, and the state machine that answers it."""
