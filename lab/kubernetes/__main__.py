"""`python -m lab.kubernetes`: a cluster for a person to look at, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal

from lab.kubernetes import Cluster


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.kubernetes", description="A throw-away Kubernetes cluster, until Ctrl-C."
    )
    parser.add_argument("--nodes", type=int, default=2, help="how many GPU nodes (2)")
    parser.add_argument("--gpus", type=int, default=8, help="how many GPUs each has (8)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Cluster.up() as cluster:
        for number in range(arguments.nodes):
            cluster.add_node(f"gpu-node-{number + 1}", gpus=arguments.gpus)
        print(
            f"Kubernetes {cluster.version} at {cluster.url}, logs in {cluster.directory}\nexport KUBECONFIG={cluster.kubeconfig}"
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping.")


if __name__ == "__main__":
    main()
