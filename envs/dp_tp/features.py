"""The DP/TP observation, number by number."""

from __future__ import annotations

from serving_gym.envs.base.features import Part, flag, log, share

PARTS = (
    Part(
        "engines",
        (
            share("group_width", "log2(base engines of the group) / log2(base engines of the node)"),
            share("target_width", "the same after the reconfigurations under way"),
            flag("group_begins", "it is the leftmost member of its group"),
            flag("draining", "its group finishes what it has before a reconfiguration"),
            flag("speculative", "idle member of a group to be, serves on its own meanwhile"),
            flag("down", "failed"),
            log("num_running", "running requests of the group", "requests", "requests"),
            log("num_waiting", "waiting requests of the group", "requests", "requests"),
            log("prefill_backlog_s", "pending prompt tokens at the group's prefill speed", "s", "backlog_s"),
            share("kv_usage", "KV cache in use"),
            log("context_tokens", "tokens of running requests in the KV cache", "tokens", "tokens"),
            log("iteration_s", "a decode iteration with the present batch", "s", "iteration_s"),
            log(
                "num_paused", "requests that stand still on any group of this engine", "requests", "requests"
            ),
        ),
        rows="base engine",
    ),
    Part(
        "cluster",
        (
            log("num_pooled", "requests that no engine has yet", "requests", "requests"),
            log("pooled_tokens", "their prompt tokens", "tokens", "tokens"),
            log("num_in_flight", "requests that have arrived and not ended", "requests", "requests"),
            log("request_rate_now", "arrivals in the last interval", "requests/s", "request_rate"),
            log("request_rate_short", "arrivals, short average", "requests/s", "request_rate"),
            log("request_rate_long", "arrivals, long average", "requests/s", "request_rate"),
            log("token_rate_now", "prompt tokens in the last interval", "tokens/s", "token_rate"),
            log("token_rate_short", "prompt tokens, short average", "tokens/s", "token_rate"),
            log("token_rate_long", "prompt tokens, long average", "tokens/s", "token_rate"),
            share("switching", "share of the node under reconfiguration"),
            log("switch_elapsed_s", "time since the present switch began; 0: none", "s", "switch_s"),
            flag("sequential", "a switch in mode 0 is under way"),
            flag("soft", "a switch in mode 1 is under way"),
            flag("hard", "a switch in mode 2 is under way"),
            log("since_switch_s", "time since the last switch", "s", "switch_s"),
        ),
        each="request class",
        repeated=(
            log("request_rate_short", "arrivals, short average", "requests/s", "request_rate"),
            share("ttft_misses_short", "first tokens later than the SLO, short average"),
            share("tpot_misses_short", "requests slower per token than the SLO, short average"),
        ),
    ),
)
