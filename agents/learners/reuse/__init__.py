"""Who is asked for again, and when: what to keep in memory, learned from traffic alone."""
