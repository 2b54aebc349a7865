"""SageServe (Jaiswal et al., 2025): serving interactive and non-interactive work on one fleet in several regions.

What happens to a request, section 6.1 and 6.2, one algorithm a file:

    effective_memory.py    effective memory utilisation, which every routing decision looks at
    region_router.py       which region an interactive request goes to
    queue_manager.py       when a non-interactive request leaves the queue, and for which endpoint
    model_router.py        which deployment of the region's endpoint
    shortest_queue.py      which instance of the deployment
    routing.py             the policy that joins them
    config.py              its constants and where they come from

How many instances there are, sections 4 to 6:

    reactive.py            section 4: unified and siloed reactive scaling
    demand.py              section 6.3: what the next hour is expected to bring
    capacity_plan.py       section 5: the optimisation problem and its solution
    deferral.py            section 6.4: LT-I, LT-U and LT-UA, when a plan is carried out
    spot.py                sections 2.3, 6.4, 7.1: spot instances given and had back, and how long that takes
    autoscaler.py          the policy that joins them
    autoscaling_config.py  constants and where they come from

The schedulers at the instance (section 6.5) are the engines' queue orders: `order` of a cluster or a fleet.
"""
