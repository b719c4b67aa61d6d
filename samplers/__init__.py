"""Samplers beside the paper's, each a file like a user's own: floors, powers of the estimated loss, the oracle."""
