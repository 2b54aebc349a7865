"""Tables, plots, progress, files and trackers."""
