"""Stand-ins of Pulumi's official plugins, for machines that can download none of them.

They keep the official interfaces, refuse what they do not know, and pass the same tests as the official ones
(tests/standins/). Nothing outside lab/ knows that they exist; toolchain installs them when there is no other way.
"""
