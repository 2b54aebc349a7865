"""Deployment of launched servers: the cores or GPUs of this machine are divided into replicas, and divided anew."""
