"""Base classes of the scalar and the vector environments."""
