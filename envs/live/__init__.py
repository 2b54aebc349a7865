"""The live body of a cluster: running vLLM servers behind the same `Backend` as the simulator."""
