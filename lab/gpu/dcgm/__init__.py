"""The stand-in of dcgm-exporter: which fields a DCGM generation knows, what they read, and how /metrics looks."""
