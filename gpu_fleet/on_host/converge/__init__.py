"""The host program: makes one host match its bundle, or reports the differences.

Each run reads the host once, computes how it differs as data, and applies the differences in order; each thing is recorded before
it is placed. gpu_fleet/host/converge/README.md describes the verbs, the manifest, the output and the records.

In the order in which they are best read:

main, verbs                            what a run does, from its arguments to its result
manifest, settings, facts, wanted      what the host should have: by its bundle, by the stack, by what the probes found
records, state, undo, foreign          what it had: what we placed, the last bundle, a part before this run, foreign files
difference, recording, parts           how a part differs; what is recorded of it; how it is applied, restored and removed
things                                 one object for each kind of thing: files, accounts, downloads, packages, services, checks
transaction                            apt and dnf, in a process of their own
disk, programs, errors, causes, events what all of these use

Shipped with on_host/probe as one zip (gpu_fleet/host/program.py), and started by the sh script `converge` of the bundle.
"""
