"""Folders of the repository that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
