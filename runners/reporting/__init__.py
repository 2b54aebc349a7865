"""What commands print, draw, write and send: tables, plots, progress bars, files and trackers."""
