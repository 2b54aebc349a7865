"""Policies on live servers, beside the simulator."""
