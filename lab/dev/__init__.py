"""The dev datacenter: this machine as a one-host GPU datacenter, deployed and monitored by the real Pulumi program.

`python -m lab.dev up | xid | down | env`, called by `make dev`, `make dev-xid`, `make dev-down`. It writes only to
.dev/ and the toolchain's cache. Not done here: anything that a real stack needs; the stack `dev` is deployed by the same
`pulumi up` as every other one.
"""
