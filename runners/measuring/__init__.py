"""Measures a running vLLM server and fits a profile to it."""
