"""What is decided before a run starts: options, plan, warnings, estimates of time and memory, hosts."""
