"""Files and directories: private ones, locks, free disk space."""
