"""A vLLM plugin: one TP=N engine whose ranks serve apart (DP) or merged (TP), and switch between iterations.

It is Flying Serving (arXiv 2602.22593, sections 4 and 5) on a pinned release of vLLM. The rooms:

    weights.py          one resident copy a rank, shards as views of it             (4.1, Model Weights Manager)
    kv.py               one block pool; a block of B tokens in DP holds B * p in TP (4.2, KV Cache Adaptor)
    communicators.py    every aligned group, built at start                         (4.3, Communicator Pool)
    worker.py           a model runner a degree; entering a group swaps three pointers
    book.py             layouts, switches in flight, when each may take place       (5, pure Python)
    group_scheduler.py  vLLM's own scheduler, one a group
    scheduler.py        all of them behind `--scheduler-cls`: a queue a group, routing, drain, pause or recompute
    executor.py         each group steps at its own pace                            (`--distributed-executor-backend`)
    endpoint.py         GET and POST /switching

This package runs inside the server's Python and imports nothing but vLLM, torch and the standard library, by relative
names, so that it is found as `serving_gym_switching` there (see `envs.live.switching.install`).

Beyond the text: the paper runs DP engines as processes of their own and merges them; here one engine core schedules all
ranks, so the request order that a group's ranks must agree on (principle (i) of section 5) is agreed by construction.
"""

VLLM_VERSION = "0.32.0"
NAME = "serving_gym_switching"
