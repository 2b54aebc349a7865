"""The autoscaling observation, number by number."""

from __future__ import annotations

from serving_gym.envs.base.features import Part, flag, log, ratio, share

PARTS = (
    Part(
        "endpoints",
        (
            log("running", "instances that serve", "instances", "instances"),
            log("starting", "instances that start", "instances", "instances"),
            log("draining", "instances that finish their requests and go", "instances", "instances"),
            log("spot", "own spot instances", "instances", "instances"),
            log("spot_of_others", "spot instances of other models in the region", "instances", "instances"),
            log("vacant", "vacant machines of the region", "machines", "instances"),
            log("next_ready", "until the first starting instance serves; 0: none starts", "s", "seconds"),
            flag("no_instance", "no instance serves"),
            ratio("kv_usage", "effective memory utilisation"),
            log("running_requests", "running requests", "requests", "requests"),
            log("waiting_requests", "requests in the queues of its instances", "requests", "requests"),
            log("waiting_tokens", "their prompt tokens", "tokens", "tokens"),
            log("held_requests", "requests held at the gateway", "requests", "requests"),
            log("niw_queued", "deferrable requests in the queue manager", "requests", "requests"),
            log("niw_queued_tokens", "their prompt tokens", "tokens", "tokens"),
            ratio("niw_oldest", "age of the oldest over the time it has"),
            share("release_level", "number of the level over the highest"),
            log(
                "load_minute", "prompt tokens/s of the last minute over an instance's capacity", "ratio", 1.0
            ),
            log("load_interval", "the same of the last decision interval", "ratio", 1.0),
            log("load_hour", "the same of the last hour", "ratio", 1.0),
            log("forecast_interval", "the same, expected in the next decision interval", "ratio", 1.0),
            log("forecast_hour", "the same, expected in the next hour", "ratio", 1.0),
            log("usual", "the same at this time a week ago, mean of two hours", "ratio", 1.0),
            log("niw_load_hour", "deferrable prompt tokens/s of the last hour over it", "ratio", 1.0),
            ratio("unrest", "root mean square of log ratios of successive quarter hours' load in a day"),
            log("output_rate", "tokens of answers in the last interval", "tokens/s", "token_rate"),
            share("late", "interactive requests of the last interval that missed an SLO"),
            log("ttft", "mean TTFT of the last interval over the strictest SLO", "ratio", 1.0),
            log("tpot", "mean TPOT of the last interval over the strictest SLO", "ratio", 1.0),
            ratio("slowness", "time that engines took in the last hour over the profile's; 1: not known"),
            log("capacity", "prompt tokens that one instance serves", "tokens/s", "token_rate"),
            log("start_time", "a start takes", "s", "seconds"),
            log("redeploy_time", "until another model's spot instance serves", "s", "seconds"),
            share("places_left", "share of instance slots that are empty"),
        ),
        rows="endpoint",
    ),
    Part(
        "clock",
        (
            share("day_sin", "(1 + sin) / 2 of the time of day"),
            share("day_cos", "(1 + cos) / 2 of the time of day"),
            share("week_sin", "(1 + sin) / 2 of the time of the week"),
            share("week_cos", "(1 + cos) / 2 of the time of the week"),
            share("left", "share of the episode that is left"),
        ),
    ),
)
