"""The processes of a run and how they end: launchers, hosts, signals, watchdog, logs; it knows no model."""
