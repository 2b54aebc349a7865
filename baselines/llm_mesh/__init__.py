"""LLM-Mesh (Xu et al.): elastic sharing for serverless LLM inference on CPU and GPU nodes.

headroom.py              section 5.1, equation 1: how urgent a request is, and which instance computes next
quantification.py        section 5.2: how long iterations take
shadow_validation.py     section 5.3, figure 6: whether a node can take one more request
memory_demand.py         section 6.1, equation 2: KV cache that an instance requires
kv_scaling.py            sections 6.2 and 6.4: when KV caches are resized, and to what
memory_orchestration.py  section 6.3, figure 9: optimistic budget, pessimistic execution, reservation station
"""
