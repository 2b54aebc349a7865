"""What is routing's own about agents: places as rows, rollouts of one fork a place."""
