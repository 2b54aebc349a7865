"""Chiron: hierarchical autoscaling by backpressure (Patke et al., arXiv 2501.08090), as SageServe compares with it.

    backpressure.py    how hard interactive and batch requests press
    autoscaler.py      instances for interactive requests, for both, and for batch requests

Its text is not at hand. What is known of it: its abstract (instances are scaled by backpressure that is estimated
"using queue size, utilization, and SLOs"); what SageServe says of it (section 7.1: ten interactive, five mixed and five
batch instances of each model and region at the start, Theta = 0.6 "in its interactive autoscaling algorithm"); and the
arbiter of SageServe's public code, which this follows in what neither says. Chiron's local autoscaler, which sets batch
sizes within an instance, is left out: the engines' own scheduler does it here.
"""
