"""What learners need to know of each environment."""
