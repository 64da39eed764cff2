"""Stand-in of the official kubernetes plugin: objects by server-side apply, releases by the real helm."""
