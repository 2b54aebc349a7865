"""An agent that learns whom of several policies to follow."""
