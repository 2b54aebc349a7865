"""The live backend: running vLLM servers behind the same `Backend` interface as the simulator."""
