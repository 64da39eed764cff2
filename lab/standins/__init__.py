"""Stand-ins of Pulumi's official plugins, for machines that can download none of them.

They keep the official interfaces (tests/standins/test_schema.py compares them with the SDKs) and refuse what they do not know;
the product's tests run on them and on the official ones. programs.py puts them in place, permission.py says for which stacks
they work.
"""
