"""From words to typed configuration, environments and policies."""
