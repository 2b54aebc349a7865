"""Magnus: batching by predicted generation length (Cheng et al., 2024, arXiv 2406.04785), as a router.

What Magnus does: every engine serves one static batch at a time, padded to its longest prompt and run until its longest
answer ends. An adaptive batcher adds each request to the waiting batch in which the least memory is accessed in vain,
as long as that is below a threshold and the batch fits the memory, and opens a new batch otherwise; an estimator
(k nearest neighbours) predicts how long serving takes; an idle engine gets the batch of the highest response ratio
(waiting time over serving time).

What PreServe makes of it for its comparison (section 5.4): a router that "groups requests with similar predicted
lengths to minimize padding overhead", before engines that batch continuously. So here:

    batcher.py         wasted memory access, with the requests that an instance has in flight as its batch
    serving_time.py    the estimator, of single requests
    policy.py          joining the batch of least waste, and the highest response ratio next where requests must wait
"""
