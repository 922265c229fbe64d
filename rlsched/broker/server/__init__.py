"""The broker's process: its loop, settings, disk, policy, and commands to wake nodes."""
