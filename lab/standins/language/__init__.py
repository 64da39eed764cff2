"""Stand-in of pulumi-language-python: runs Pulumi programs in their virtual environment."""
