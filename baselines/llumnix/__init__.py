"""Llumnix: dynamic scheduling of LLM requests across instances by live migration (Sun et al., OSDI 2024).

    virtual_usage.py    algorithm 1: virtual usages and freeness
    migration.py        section 4.4.3: pairs of instances, and which request moves
    policy.py           dispatch of new requests and migration of running ones

The authors' public implementation (github.com/AlibabaPAI/llumnix) is named as the source where the text has no number.
Its auto-scaling (average freeness between 10 and 60) starts and stops instances, which is not a router's to decide.
"""
