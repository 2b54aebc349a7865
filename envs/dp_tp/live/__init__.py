"""The DP/TP environment on a live vLLM server."""
