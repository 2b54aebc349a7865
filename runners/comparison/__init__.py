"""Paired comparisons of policies on identical arrivals."""
