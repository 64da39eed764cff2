"""What each resource type does, in plain values: one module per type, none of which knows gRPC or SSH."""
