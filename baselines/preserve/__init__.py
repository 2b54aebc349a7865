"""PreServe: management of LLM services by hierarchical prediction (Jiang et al.)."""
