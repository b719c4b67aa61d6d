"""The processes of a job: launchers, hosts, signals, watchdog and logs. Knows nothing of models."""
