"""Stand-in of pulumi-resource-grafana: folders, dashboards, data sources and alerting through Grafana's HTTP API."""
