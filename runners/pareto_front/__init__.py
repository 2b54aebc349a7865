"""Pareto fronts of policies at several settings, over two metrics."""
