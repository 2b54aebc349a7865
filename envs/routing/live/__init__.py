"""Routing on live servers: `Serving/Routing-v0` with running vLLM engines in the simulator's place."""
