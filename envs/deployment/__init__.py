"""Deployment choice: into which replicas a cluster is cut, and which of them serves how much of which type.

    workload_types.py                 workload types by k-means
    profiling.py                      capacities of replica kinds for workload types
    assignment.py, simplex.py         assignment of types to replicas: an exact linear program
    strategies.py                     what a deployment is worth

Machines, links, placements and what a switch moves are in `envs.machines`. Terms, sections and numbers of algorithms
are those of OServe (Jiang et al., 2026), whose own decisions are in `baselines.oserve`.
"""
