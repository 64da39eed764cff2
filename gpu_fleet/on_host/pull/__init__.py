"""Pull mode: a host fetches the newest publication of its stack, verifies it, and applies it with its own converge program.

Nothing that was fetched is unpacked or run before the signature of the index, and the sha256 in it, have been verified.

Two programs: gpu-fleet-pull (`main`), one zip on the host, and the installer (`install`), whose sources
gpu_fleet/host/pull/publish.py writes into one script. Not here: what changes a host (on_host/converge, of the bundle).
"""
