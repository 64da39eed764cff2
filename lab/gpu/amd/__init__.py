"""The simulated rocm-smi, amd-smi and device metrics exporter over AMD GPUs."""
