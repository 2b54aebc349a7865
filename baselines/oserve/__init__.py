"""OServe: serving with deployments that fit the workload in space and in time (Jiang et al., 2026).

    flow_network.py                       section 4.2: the flow network, by preflow-push
    mutations.py                          section 4.3: merge, split, swap
    generation.py                         section 4.3, Algorithm 1
    scheduler.py                          section 4: from a span's demand to a serving strategy
    exhaustive.py                         section 6.4, its bound
    forecast.py, lstm.py                  section 5.1, S2, and the predictors of section 6.3
    policy.py                             all of it as a policy of `Serving/Deployment-v1`
    vllm.py, dynamo.py, clairvoyant.py    what it is compared with there
    dynamo_two_widths.py                  two of the last and a threshold between them; ours
    uniform.py, dynamo.py                 section 6.1, layouts of vLLM (static), vLLM (reload) and Dynamo + vLLM

What the environment needs as well is in `envs.deployment`:

    profiling.py                          Appendix D: capacities n_kj of replica kinds for workload types
    assignment.py, simplex.py             section 4.2, C1 to C3 exactly
    strategies.py                         section 4.3: the best parallelism for given sizes
    workload_types.py                     section 5.1, S1

and in `envs.machines`:

    cluster.py, placement.py              machines, replica kinds, deployments and where they stand
    shards.py, switch_plan.py             section 5.2, Algorithm 2
    kv_migration.py                       section 5.2, KV cache transmission
    transfer.py                           how long a plan takes on shared links, and a naive reload

The text has a misprint: its Appendix C computes with 100 requests of type 2, not with 50.
"""
