"""The deployment observation, number by number."""

from __future__ import annotations

from serving_gym.envs.base.features import Part, flag, log, ratio, share

PARTS = (
    Part(
        "candidates",
        (
            flag("exists", "the row is a candidate"),
            flag("stay", "it keeps the present replicas"),
            flag("uniform", "all replicas are alike"),
            flag("apart", "types are kept apart, else spread over all replicas"),
            flag("divided", "prefill and decode have workers of their own"),
            log("room", "requests that it can serve over requests forecast", "ratio", 1.0),
            log("prefill_room", "the same of its prefill workers; `room` if replicas do both", "ratio", 1.0),
            log("decode_room", "the same of its decode workers; `room` if replicas do both", "ratio", 1.0),
            share("replicas", "over the most there can be"),
            share("prefill_tp", "mean TP degree of replicas that prefill over the GPUs of a machine"),
            share("prefill_pp", "mean PP degree of replicas that prefill over the longest pipeline"),
            share("decode_tp", "mean TP degree of replicas that decode over the GPUs of a machine"),
            share("decode_pp", "mean PP degree of replicas that decode over the longest pipeline"),
            share("prefill_gpus", "share of GPUs that only prefill"),
            share("idle_gpus", "share of GPUs without a replica"),
            log("kv_capacity_tokens", "KV pools of all replicas that decode", "tokens", "tokens"),
            share("gpus_changed", "share of GPUs in new replicas"),
            log("switch_bytes", "weights that would be sent", "bytes", "switch_bytes"),
            log("switch_stall_s", "until new replicas serve, without draining and KV", "s", "switch_s"),
            log("requests_moved", "requests in replicas that would go", "requests", "requests"),
            log("context_moved", "their tokens in the KV cache", "tokens", "tokens"),
        ),
        rows="candidate",
        each="workload type",
        repeated=(
            log("room_of_type", "requests of the type alone that it can serve over forecast", "ratio", 1.0),
        ),
    ),
    Part(
        "replicas",
        (
            share("tp", "TP degree over the GPUs of a machine"),
            share("pp", "PP degree over the longest pipeline"),
            flag("in_service", "it serves"),
            log("num_running", "running requests", "requests", "requests"),
            log("num_waiting", "waiting requests", "requests", "requests"),
            log("pending_prefill_tokens", "prompt tokens not yet prefilled", "tokens", "tokens"),
            log("context_tokens", "tokens of running requests in the KV cache", "tokens", "tokens"),
            share("kv_usage", "KV cache in use"),
            ratio("busy", "time in iterations over the last span"),
            flag("prefills", "it prefills"),
            flag("decodes", "it decodes"),
        ),
        rows="replica",
        each="workload type",
        repeated=(share("share_of_type", "share of the type's requests that it gets"),),
    ),
    Part(
        "types",
        (
            log("forecast", "expected in the next span", "requests/s", "request_rate"),
            log("input_tokens", "mean prompt", "tokens", "type_tokens"),
            log("output_tokens", "mean output", "tokens", "type_tokens"),
        ),
        rows="workload type",
        each="past span, the latest first",
        repeated=(log("rate", "requests that arrived", "requests/s", "request_rate"),),
    ),
    Part(
        "cluster",
        (
            log("num_pooled", "requests that no replica has yet", "requests", "requests"),
            log("pooled_tokens", "their prompt tokens", "tokens", "tokens"),
            log("num_in_flight", "requests that have arrived and not ended", "requests", "requests"),
            flag("draining", "a switch waits for requests to finish"),
            flag("switching", "weights are on their way, or engines start"),
            log("switch_elapsed_s", "time since the present switch began; 0: none", "s", "switch_s"),
            log("switch_due_s", "until its present phase ends", "s", "switch_s"),
            log("since_switch_s", "time since a switch began", "s", "switch_s"),
            log("request_rate", "arrivals in the last span", "requests/s", "request_rate"),
            log("finish_rate", "requests that ended in the last span", "requests/s", "request_rate"),
            log("p99_s", "99th percentile of their latency", "s", "latency_s"),
            share("ttft_misses", "first tokens of the last span later than the SLO"),
            share("tpot_misses", "requests that ended slower per token than the SLO"),
            log("refused_rate", "requests refused in the last span", "requests/s", "request_rate"),
        ),
    ),
)
