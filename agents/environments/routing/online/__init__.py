"""Online: a router that learns the speed of engines while it serves."""
