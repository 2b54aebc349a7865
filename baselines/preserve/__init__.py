"""PreServe: management of LLM services by hierarchical prediction (Jiang et al., arXiv 2504.03702).

Tier 1, services:

mlstm.py                section 4.1: the multiplicative LSTM
capability.py           section 4.1, Algorithm 1: what an instance has been seen to serve
workload_predictor.py   section 4.1, Algorithms 1 and 2: the next window's tokens and the instances that they need
instance_scaler.py      section 4.3.2: how many instances there are
comparators.py          section 5.3: Reactive, Proactive, Hybrid
pass_scaler.py          section 5.3: PASS, as far as it is known

Tier 2, requests:

length_predictor/      section 4.2: how long an answer will be, from the text of its prompt
look_ahead.py          section 4.3.1: the load anticipator of all instances, for router and scaler
router.py              section 4.3.3, and of 4.3.2 the rule by which an instance counts as overloaded
"""
