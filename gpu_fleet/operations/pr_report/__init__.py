"""`make pr-report`: what the branch changes in every stack, compared with the commit it is merged into.

Needs no credentials, no hosts and no secrets: both commits' programs are run without an engine (components/registered.py), and
what they would register is compared, in words.
"""
