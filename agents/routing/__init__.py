"""What is routing's own about agents: set networks over places, rollouts of one fork a place."""
