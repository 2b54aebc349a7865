"""The training loop of `runners.train`."""
