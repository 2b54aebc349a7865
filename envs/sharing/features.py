"""The sharing observation, number by number."""

from __future__ import annotations

from serving_gym.envs.base.features import Feature, Part, flag, log, ratio, share

_GAPS = (
    log("gap_30s", "mean time between requests of its model, of the last 30 s", "s", "latency_s"),
    log("gap_3m", "the same of the last 3 minutes", "s", "latency_s"),
    log("gap_30m", "the same of the last 30 minutes", "s", "latency_s"),
)
PARTS = (
    Part(
        "places",
        (
            flag("can_take", "the action is possible now"),
            flag("there", "the slot has an instance; 1 for new ones"),
            flag("new", "it would be a new instance on a node"),
            flag("of_model", "the instance is of the request's model"),
            flag("loading", "it loads"),
            flag("resizing", "its KV pool is resized"),
            log(
                "ready_s",
                "until an operation on it ends; for new ones, until it would serve",
                "s",
                "latency_s",
            ),
            log("running", "running requests", "requests", "requests"),
            log("waiting", "waiting requests", "requests", "requests"),
            share("kv_usage", "KV pool in use"),
            ratio("kv_demand", "what its requests and this one need over its KV pool"),
            log("idle_s", "time without requests", "s", "latency_s"),
            log("headroom_s", "least time to a deadline of its requests", "s", "latency_s"),
            log("overdue_s", "time since the earliest deadline has passed", "s", "latency_s"),
            flag("can_prefill", "it has a request to prefill that fits"),
            log("decode_s", "its next decode iteration, with this request if it joins", "s", "iteration_s"),
            log("own_prefill_s", "prefill of this request there", "s", "latency_s"),
            log("node_instances", "instances on the node", "instances", "requests"),
            log("node_running", "running requests on the node", "requests", "requests"),
            log("node_backlog_s", "prefill work that waits on the node", "s", "latency_s"),
            log("node_cycle_s", "a decode iteration of every instance of the node", "s", "iteration_s"),
            log("node_headroom_s", "least time to a deadline on the node", "s", "latency_s"),
            share("node_free", "share of the node's memory that is free"),
            log("node_busy_s", "until the iteration under way ends", "s", "iteration_s"),
            flag("node_used", "the node has an instance"),
            Feature("replaces", "idle instances of other models that the action unloads", "instances"),
            log(
                "asked_s",
                "since the last request of its model (new ones: of the request's)",
                "s",
                "latency_s",
            ),
            log("known_s", "since the first request of its model", "s", "latency_s"),
            *_GAPS,
        ),
        rows="place",
    ),
    Part(
        "request",
        (
            flag("placing", "a request is to be placed; 0: an iteration is to be given"),
            log("input_tokens", "its prompt", "tokens", "tokens"),
            log("mean_output_tokens", "mean output of its model so far", "tokens", "tokens"),
            log("generated_tokens", "generated before it was evicted", "tokens", "tokens"),
            log("waited_s", "time since it arrived", "s", "latency_s"),
            ratio("slack", "time to the deadline of its next token over its TTFT SLO"),
            log("overdue", "time since that deadline over its TTFT SLO", "ratio", 1.0),
            log("instances", "instances of its model", "instances", "requests"),
            Feature("weights", "weights of its model", "10 GB"),
            Feature("token_bytes", "KV cache of one token", "MB"),
            *_GAPS,
        ),
    ),
    Part(
        "cluster",
        (
            log("held", "requests that are held", "requests", "requests"),
            log("in_system", "requests that have arrived and not ended", "requests", "requests"),
            log("running", "running requests", "requests", "requests"),
            log("instances", "instances", "instances", "requests"),
        ),
        each="kind of node",
        repeated=(share("nodes_used", "share of its nodes that have an instance"),),
    ),
)
