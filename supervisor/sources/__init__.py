"""The world as facts and samples: logs, metrics, processes, GPUs, the host. Sources know nothing of runs."""
