"""How a command starts and fails."""
