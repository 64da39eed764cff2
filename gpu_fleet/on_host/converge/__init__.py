"""The host program: makes one host match its bundle, or reports the differences.

Each run reads the host once, computes how it differs as data, and applies the differences in order; each thing is recorded before
it is placed. gpu_fleet/host/converge/README.md describes the verbs, the manifest, the output and the records.

Bundles still have the program in shell (gpu_fleet/host/converge), which prints and records the same. In a bundle, start.sh is
`converge`, __main__.py is in lib/converge/, and the other modules are in lib/converge/program/: tests/host/switched.py does that.
"""
