"""The simulated cluster: the engine, which does not need Gymnasium, and the Gymnasium environments."""
