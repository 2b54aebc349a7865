"""The compiled data plane: continuous batching, KV blocks, queues and built-in routers."""
