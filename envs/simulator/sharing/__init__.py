"""A simulated cluster whose nodes are shared by instances of many models, token by token."""
