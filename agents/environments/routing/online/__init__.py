"""A router that learns the engines' speed while it serves."""
