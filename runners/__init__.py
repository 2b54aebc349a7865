"""The commands: `python -m runners.NAME`, with Hydra's override grammar."""
