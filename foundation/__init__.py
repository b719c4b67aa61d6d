"""The ground floor, which imports nothing of the project: strict configuration, command line, files, randomness."""
