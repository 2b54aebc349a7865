"""The simulator backend: a compiled data plane under a SimPy control plane."""
