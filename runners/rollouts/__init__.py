"""Episodes under a policy, in this process or on workers."""
