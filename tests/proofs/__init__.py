"""Claims about the whole that are proved at length: by statistics, on real data, over all settings or languages."""
