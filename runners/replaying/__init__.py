"""Logged decisions, replayed with other policies: what they would have chosen, and what that is estimated to gain."""
