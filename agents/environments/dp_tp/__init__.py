"""What is DP/TP's own about agents: networks that know layouts, candidates, rollouts."""
