"""Models, hardware and calibrated latency: everything the simulator knows about how long serving takes."""
