"""Encrypted connections between broker, clients and nodes: keys, roles, sockets, reconnecting."""
