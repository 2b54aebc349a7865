"""Machines with GPUs and links, placement of replicas, and the transfers and costs of switches.

    spec.py                           a cluster that can be divided into replicas
    cluster.py, placement.py          machines, replica kinds, deployments and placement
    shards.py, switch_plan.py         sources and targets of weights at a switch
    kv_migration.py                   migration of running requests' KV caches
    transfer.py                       transfer times on shared links, and a naive reload

Sections and numbers of algorithms are those of OServe (Jiang et al., 2026).
"""
