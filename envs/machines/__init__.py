"""Machines with GPUs and links, replicas placed on them, and what changing them moves and costs.

    spec.py                           a cluster that can be cut into replicas anew
    cluster.py, placement.py          machines, replica kinds, deployments and where they stand
    shards.py, switch_plan.py         which weights go from where to where at a switch
    kv_migration.py                   how KV caches of running requests move
    transfer.py                       how long that takes on shared links, and a naive reload

Sections and numbers of algorithms are those of OServe (Jiang et al., 2026).
"""
