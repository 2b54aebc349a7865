"""Fleets whose instances come and go: machines, spot instances, a gateway, requests by the hour."""
