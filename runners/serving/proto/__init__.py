"""Generated messages of the protocols that policies are served by; see the README."""
