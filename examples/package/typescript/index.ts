// One GPU host of a cluster. `pulumi package add` has written the package's SDK.
import * as gpufleet from "gpu-fleet";
import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();
const host = new gpufleet.Host("gpu-node-001", {
    datacenter: "us-west",
    cluster: "training",
    address: config.require("address"),
    port: config.getNumber("port"),
    gpus: 8,
    ssh: config.requireObject("ssh"),
    artifacts: config.getObject("artifacts"),
    metrics: { url: config.require("metricsUrl"), username: "writer" },
    metricsPassword: config.requireSecret("metricsPassword"),
});
export const exporter = host.exporter;
export const gpus = host.gpus;
