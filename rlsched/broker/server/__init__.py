"""The broker's process: loop, settings, disk and policy, and the commands that power nodes up and down."""
