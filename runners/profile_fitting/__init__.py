"""Fits profiles by simulation to measured runs, and writes them."""
