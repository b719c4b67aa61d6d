"""The paper's method on a batch: generator, sampling of replacements, losses; it knows no engine and no job."""
