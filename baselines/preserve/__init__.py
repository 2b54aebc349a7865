"""PreServe: management of LLM services by hierarchical prediction (Jiang et al., arXiv 2504.03702); here, requests.

length_predictor/      section 4.2: how long an answer will be, from the text of its prompt
load_anticipator.py    section 4.3.1: the load-look-ahead map of one instance, kept event by event as in the text
look_ahead.py          the same map of every instance at once, from the requests in flight: what the router uses
router.py              section 4.3.3, and of 4.3.2 the rule by which an instance counts as overloaded
"""
