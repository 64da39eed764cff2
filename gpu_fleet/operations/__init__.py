"""The make targets for real stacks: preview, deploy, a shell, host keys, drift, pull mode, artifacts, dashboards, load tests."""
