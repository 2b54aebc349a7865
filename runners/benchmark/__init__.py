"""The benchmark: all tasks, block by block."""
