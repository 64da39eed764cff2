"""The GPU hosts of a cluster, and a rule of our own about them. `pulumi package add` has written the package's SDK."""

import pulumi
import pulumi_gpu_fleet as gpu_fleet

config = pulumi.Config()
fleet = gpu_fleet.Fleet(
    "us-west",
    datacenter="us-west",
    cluster="training",
    ssh=config.require_object("ssh"),
    hosts=config.require_object("hosts"),
    artifacts=config.get_object("artifacts"),
    metrics={"url": config.require("metricsUrl"), "username": "writer"},
    metrics_password=config.require_secret("metricsPassword"),
)
busy = "{name: busy, rules: [{record: 'cluster:gpu_busy:count', expr: 'count by (cluster) (gpu:utilization:ratio > 0.9)'}]}"
gpu_fleet.RuleGroup("busy", backend="mimir", url=config.require("mimirUrl"), namespace="ours", name="busy", rules=busy)
pulumi.export("hosts", fleet.hosts)
