"""The simulated cluster: the engine (free of gymnasium), the Gymnasium environment, the native vector one."""
