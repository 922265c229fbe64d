"""The Python client of the broker: `from rlsched.client.client import Client`."""
