"""ServerlessLLM (Fu et al., OSDI 2024) as LLM-Mesh's evaluation uses it: sllm and sllm+cpu."""
