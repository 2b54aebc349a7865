"""Where does each request go? `Serving/Routing-v0`."""
