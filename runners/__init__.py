"""The commands people type: `python -m runners.NAME`, in Hydra's grammar."""
