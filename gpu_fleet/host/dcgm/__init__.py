"""What dcgm-exporter collects, the same on hosts and in Kubernetes. Pure, except for reading a list of counters."""
