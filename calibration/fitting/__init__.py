"""Fits the committed profiles to measured tables; nothing in here runs when the simulator does."""
