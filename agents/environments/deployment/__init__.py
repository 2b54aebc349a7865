"""What is deployment choice's own about agents: what the network sees, rollouts."""
