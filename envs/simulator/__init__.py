"""The simulated body of a cluster: a compiled data plane under a SimPy control plane."""
