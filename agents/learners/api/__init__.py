"""Approximate policy iteration by counterfactual rollouts on the forkable simulator (`agent=api`)."""
