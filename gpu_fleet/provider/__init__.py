"""The Pulumi plugin `gpu-fleet`: hosts, their bundle, and rules of Mimir and Loki. Imports nothing of components/.

`server` answers the engine, `resources/` says what each resource type does, `host`, `transport`, `ssh` and `ruler` do it and know
no Pulumi.
"""
