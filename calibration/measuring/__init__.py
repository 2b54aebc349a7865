"""Measuring a running vLLM: a designed load, its per-iteration log, and the coefficients that follow."""
