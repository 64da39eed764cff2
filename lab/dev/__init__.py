"""The dev datacenter: this machine as a one-host GPU datacenter, brought up and watched by the real Pulumi program.

`python -m lab.dev up | xid | down | env`, called by `make dev`, `make dev-xid`, `make dev-down`. Everything it writes lies
below .dev/ and the toolchain's cache. Not done here: anything that a real stack would need; the stack `dev` is deployed
by the same `pulumi up` as every other one.
"""
