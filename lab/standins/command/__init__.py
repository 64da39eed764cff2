"""Stand-in of pulumi-resource-command: commands on this machine and over SSH as resources."""
