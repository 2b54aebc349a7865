"""Where does each request go? `Serving/Routing-v1`."""
