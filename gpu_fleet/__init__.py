"""What the program, its commands and its provider are made of. On hosts runs what is in host/ and on_host/."""
