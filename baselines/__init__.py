"""Policies that do not learn: what a practitioner would pick, and the heuristics of published systems."""
