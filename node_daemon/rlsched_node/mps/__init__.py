"""Sharing of GPUs by NVIDIA's Multi-Process Service (MPS).

control.py    one control daemon: its processes, its commands and its log
sharing.py    the control daemons of a node, and the ranks that are their clients
"""
