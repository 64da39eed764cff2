"""Programs that run on hosts, in Python's standard library alone, 3.8 and newer (design decision 2).

They are placed at /opt/gpu-fleet/lib/python and started by scripts of libexec, which set their environment. They import nothing
but the standard library and each other. Not here: what changes a host (gpu_fleet/host/converge).
"""
