"""What runs in a Kubernetes cluster: a program in Python's standard library, mounted into an image that has Python."""
