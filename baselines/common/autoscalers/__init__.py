"""Autoscalers that a practitioner would pick, one a file.

horizontal.py           the Horizontal Pod Autoscaler of Kubernetes, on waiting requests and on KV usage
panic_window.py         Knative's pod autoscaler, with its panic window
cron.py                 a timetable, as KEDA's cron scaler
saturation.py           the saturation rule of llm-d's workload-variant autoscaler
throughput_planner.py   the throughput mode of Dynamo's planner
clairvoyant.py          a plan in hindsight, for comparison
fixed.py                a number that stays
queue_proportional.py   as many instances as there are requests for
"""
