"""Networks that score actions."""
