"""Policies over what a stack registers, for `make policies`, the report of a pull request, and as a Pulumi policy pack.

checks.py is pure; __main__.py serves it to the engine of `pulumi preview --policy-pack gpu_fleet/policy`.
"""
