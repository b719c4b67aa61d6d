"""Decisions before a run starts: options, plan, warnings, estimates of time and memory, hosts."""
