"""Generators of sessions: chats, coding agents, and rollouts of reinforcement learning."""
