"""Routing on live servers: `Serving/Routing-v1` with running vLLM engines in the simulator's place."""
