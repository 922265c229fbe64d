"""rlsched: a reinforcement-learning scheduling agent for GPU clusters."""

__version__ = "0.1.0"
