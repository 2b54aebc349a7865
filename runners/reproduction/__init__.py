"""Published figures beside ours: what a claim is, and one module a paper."""
