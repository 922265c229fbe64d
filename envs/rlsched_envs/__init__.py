"""The simulated cluster: the engine (without gymnasium), and single and vector Gymnasium environments."""
