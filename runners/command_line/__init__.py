"""Start, errors and help of commands."""
