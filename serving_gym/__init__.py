"""Reinforcement-learning environments for LLM serving policies."""
