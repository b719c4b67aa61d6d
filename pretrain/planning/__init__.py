"""Plans of runs: options, checks, warnings, estimates, hosts."""
