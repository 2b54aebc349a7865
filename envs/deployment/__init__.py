"""Deployment choice: into which replicas a cluster is cut, and which of them serves how much of which type.

    cluster.py, placement.py          machines, replica kinds, deployments and where they stand
    workload_types.py                 workload types by k-means
    profiling.py                      capacities of replica kinds for workload types
    assignment.py, simplex.py         who serves what: an exact linear program
    strategies.py                     what a deployment is worth
    shards.py, switch_plan.py         which weights go from where to where at a switch
    kv_migration.py                   which running requests are drained, and how KV caches move
    transfer.py                       how long that takes on shared links, and a naive reload

Terms, sections and numbers of algorithms are those of OServe (Jiang et al., 2026), whose own decisions are in
`baselines.oserve`.
"""
