"""The host program: makes one host match its bundle, or reports the differences.

Each run reads the host once, computes how it differs as data, and applies the differences in order; each thing is recorded before
it is placed. gpu_fleet/host/converge/README.md describes the verbs, the manifest, the output and the records.

Shipped with on_host/probe as one zip (gpu_fleet/host/program.py), and started by the sh script `converge` of the bundle.
"""
