"""The simulated nvidia-smi, one module per output. Formats follow recorded outputs of drivers 450 to 610."""
