"""Reports of run directories: one self-contained HTML page each."""
