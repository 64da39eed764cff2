"""Every PromQL and LogQL expression of the dashboards, as functions of a selector; one file per topic.

They use the vocabulary of alerts/vocabulary.py and the metrics of node_exporter, Alloy, Kubernetes and Mimir, but no metric of a
single GPU exporter. Results that grow with the fleet are aggregated or limited to the highest values on the server.
"""
