"""Stand-ins of Pulumi's official plugins, for machines that can download none of them.

They keep the official interfaces, refuse what they do not know, and pass the same tests as the official ones
(tests/standins/). programs.py puts them in place, permission.py says for which stacks they work.
"""
