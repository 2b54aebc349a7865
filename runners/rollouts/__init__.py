"""Episodes under a policy: in this process, in worker processes, or on a Ray cluster."""
