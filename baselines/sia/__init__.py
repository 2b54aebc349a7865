"""Sia (Jayaram Subramanya et al., SOSP 2023) as PreServe adapts it to routing.

Sia assigns jobs of machine-learning training to configurations of GPUs: it learns the goodput of each job on each
configuration from what it observes, and in each round an integer linear program picks the assignment. PreServe's
adaptation (its section 5.4) learns "a goodput model (mapping request features to instance throughput) from historical
data" and then uses "an integer linear programming (ILP) solver to determine the optimal routing policy". More it does
not say; here:

    goodput.py       the model, its features, and how it is learned from what engines report
    assignment.py    the integer linear program
    policy.py        requests are the jobs, places in instances' batches the configurations
"""
