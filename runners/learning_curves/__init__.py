"""Learning curves over several trainings of an agent."""
