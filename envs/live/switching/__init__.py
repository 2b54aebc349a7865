"""A TP server that switches between DP and TP in place, as Flying Serving does: the vLLM plugin, and its client."""
