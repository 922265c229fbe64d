"""PPO with a network that scores candidates: network, policy, recipes, training. Needs the extra `train`."""
