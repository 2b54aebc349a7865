"""The routing observation, number by number."""

from __future__ import annotations

from serving_gym.envs.base.features import Part, flag, log, ratio, share

PARTS = (
    Part(
        "places",
        (
            flag("can_take", "in service, of the request's model, and large enough for the request"),
            flag("in_service", "it serves"),
            log("in_flight", "requests sent there and not finished", "requests", "requests"),
            log("unanswered", "of these, without a first token", "requests", "requests"),
            log("waiting", "gauge: requests that wait in the engine", "requests", "requests"),
            log("running", "gauge: requests that run", "requests", "requests"),
            share("kv_usage", "gauge: KV cache in use"),
            log("queued_tokens", "prompt tokens of the unanswered requests", "tokens", "tokens"),
            log("prefill_backlog_s", "these, at the place's prefill speed", "s", "prefill_s"),
            log("remaining_tokens", "predicted output tokens still to come", "tokens", "tokens"),
            log("drain_s", "these, at the present pace", "s", "decode_s"),
            ratio("context_usage", "known context over KV capacity"),
            ratio("peak_usage", "most context now and 10, 20, ... 100 iterations ahead, request included"),
            ratio("excess_usage", "what of this exceeds 0.8"),
            log("iteration_s", "a decode iteration with one request more than now", "s", "iteration_s"),
            log("own_prefill_s", "prefill of the request's prompt, without what is cached", "s", "prefill_s"),
            log("own_decode_s", "its predicted output at `iteration_s`", "s", "decode_s"),
            share("prefix_hit", "share of its prompt in the place's prefix cache (`env.prefix_index`)"),
            log("kv_capacity", "size of the KV pool", "tokens", "capacity_tokens"),
            log("network_s", "to the place's region and back", "s", "prefill_s"),
        ),
        rows="place",
    ),
    Part(
        "request",
        (
            log("input_tokens", "its prompt", "tokens", "prompt_tokens"),
            log("predicted_tokens", "its predicted output", "tokens", "prompt_tokens"),
            log("max_output_tokens", "longest output that it allows", "tokens", "prompt_tokens"),
            ratio("slack", "time to the deadline of its first token over its TTFT SLO"),
            log("overdue", "time since that deadline over its TTFT SLO", "ratio", 1.0),
            log("waited_s", "time since it arrived", "s", "decode_s"),
            flag("held_before", "it has been held before"),
        ),
        each="request class",
        repeated=(flag("is_class", "it is of this class"),),
    ),
    Part(
        "cluster",
        (
            log("held", "requests in the router's queue besides this one", "requests", "requests"),
            log(
                "unsent_tokens", "prompts of all requests without an engine, this one too", "tokens", "tokens"
            ),
            log("requests_short", "arrivals, short average", "requests/s", "request_rate"),
            log("requests_long", "arrivals, long average", "requests/s", "request_rate"),
            log("prompt_tokens_short", "their prompts, short average", "tokens/s", "token_rate"),
            log("prompt_tokens_long", "their prompts, long average", "tokens/s", "token_rate"),
            log("predicted_tokens_short", "their predicted outputs, short average", "tokens/s", "token_rate"),
            log("predicted_tokens_long", "their predicted outputs, long average", "tokens/s", "token_rate"),
            share("ttft_misses_short", "first tokens later than the SLO, or never; short average"),
            share("tpot_misses_short", "requests slower per token than the SLO; short average"),
            log("gauge_age_s", "time since the gauges were read", "s", "prefill_s"),
        ),
    ),
)
ADMISSION = Part(
    "admission",
    (
        share("urgency", "1 / (1 + e^priority): the lower priority value is served first"),
        flag("deferred", "the request has been deferred"),
        ratio("saturation_mean", "mean over places of the larger of waiting / 5 and KV usage / 0.8"),
        ratio("saturation_max", "the same, of the most saturated place"),
    ),
    each="request class",
    repeated=(
        log("held_of_class", "requests in the router's queue besides this one", "requests", "requests"),
        log("sent_short", "requests sent to an engine, short average", "requests/s", "request_rate"),
        log("refused_short", "requests refused, short average", "requests/s", "request_rate"),
    ),
    when="env.admission=true",
)
