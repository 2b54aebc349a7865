"""Measurements of real engines in the forms they are published in, and what the simulator says of the same runs."""
