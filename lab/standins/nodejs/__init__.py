"""Stand-in of pulumi-language-nodejs: runs Pulumi programs with the `node` of the PATH."""
