"""Llumnix: dynamic scheduling of LLM requests across instances by live migration (Sun et al., OSDI 2024).

    virtual_usage.py    algorithm 1: virtual usages and freeness
    migration.py        section 4.4.3: pairs of instances, and which request moves
    policy.py           dispatch of new requests and migration of running ones
    scaler.py           section 4.4.3: auto-scaling by average freeness

The authors' public implementation (github.com/AlibabaPAI/llumnix) is named as the source where the text has no number.
Its auto-scaling starts and stops instances, which is not a router's to decide: it is a policy of its own.
"""
