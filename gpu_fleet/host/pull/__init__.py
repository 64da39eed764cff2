"""Pull mode: hosts that provision themselves from a publication on any file server, object store or USB stick.

    publish.py   what is published: the bundle (the same bytes as push), the signed index `latest`, the installer
    install.sh   the installer's own half; rootfs/opt/gpu-fleet/lib/pull.sh is the other, shared with gpu-fleet-pull on the host

    python -m gpu_fleet.host.pull --stack STACK --key KEY --to DIRECTORY [--url URL]

docs/pull.md shows how to use it.
"""
