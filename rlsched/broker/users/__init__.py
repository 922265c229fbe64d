"""Users, accounts and VCs: quotas, priorities, fair share."""
