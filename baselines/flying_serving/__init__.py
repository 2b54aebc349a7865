"""Flying Serving: on-the-fly parallelism switching (Gao et al., 2026, arXiv 2602.22593).

The policy decides when to bind base engines into tensor-parallel groups and when to release them. The substrate that
makes a switch cheap is written out beside it, as arithmetic and bookkeeping that a test can follow; the simulator and
the live launcher have their own implementations of the same mechanisms.

    weights_manager.py     section 4.1, equation (1)
    kv_cache_adaptor.py    section 4.2, equations (2) to (4b)
    communicator_pool.py   section 4.3
    scheduler.py           section 5.1, algorithm 1
    config.py, load_adaptation.py, priority_binding.py, long_context.py, policy.py    sections 2.3, 3 and 5.2

Where the text is silent the authors' public release is named as the source if it has an answer
(github.com/Picomp-lab/Flying-Serving, its documentation only), else `source: ours`.
"""
