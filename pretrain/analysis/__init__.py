"""Analysis of runs: the paper's evaluation as numbers, tables and figures; health checks; run pages; model cards."""
