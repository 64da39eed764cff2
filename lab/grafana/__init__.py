"""A stand-in of the Grafana server, for machines that cannot download it. It is a preview and not Grafana.

It keeps folders, dashboards, data sources and alerting resources through the part of Grafana's HTTP API that this project's
resources use, responds to errors as Grafana does, and shows what is stored. It evaluates alert rules only on request
for their state, and sends no notifications. Behaviour follows Grafana 12 (docs: developers/http_api; messages: pkg/services of
grafana/grafana).
"""
