"""The textfile collectors. Each is a module with `collect(tools, metrics)`; a host has those that its bundle places here."""
