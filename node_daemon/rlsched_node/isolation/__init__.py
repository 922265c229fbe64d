"""What keeps jobs apart: users, control groups, devices, limits."""
