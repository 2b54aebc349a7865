"""When eight GPUs are eight engines and when they are one: live DP/TP switching of a node."""
