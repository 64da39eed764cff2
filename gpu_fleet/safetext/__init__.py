"""Text from outside (a host, a server, an inventory), made safe for whoever reads it: terminals, Pulumi's engine and CI logs
(terminal.py), and Markdown (markdown.py). It shows what came, and changes nothing else. Imports no other room."""
