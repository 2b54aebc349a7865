"""An agent that learns to switch between several policies."""
