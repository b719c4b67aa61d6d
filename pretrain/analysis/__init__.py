"""Analysis of runs: the paper's evaluation as numbers, tables and figures; the doctor; run pages; model cards."""
