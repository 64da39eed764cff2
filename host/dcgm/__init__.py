"""What dcgm-exporter is told to collect, the same on hosts and in Kubernetes. Pure but for reading a list of counters."""
