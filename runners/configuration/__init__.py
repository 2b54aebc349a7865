"""Resolves overrides to typed configuration, environments and policies."""
