"""The broker's process: its loop, settings, disk and policy, and the commands that power nodes."""
