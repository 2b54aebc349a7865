"""What `runners.bench` measures."""
