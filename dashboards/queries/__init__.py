"""Every PromQL and LogQL expression of the dashboards, as functions of a selector; a file for each kind of question.

They use the vocabulary of alerts/vocabulary.py, the metrics of node_exporter, Alloy, Kubernetes and Mimir, and nothing of one GPU
exporter alone. What grows with the fleet is added up or cut to the largest before Grafana sees it.
"""
