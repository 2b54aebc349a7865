"""Autoscaling of launched servers: slots of this machine are started, drained, stopped, put to sleep and woken."""
