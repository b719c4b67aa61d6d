"""The paper's method on one batch: generator, sampling of replacements, losses. Knows neither engine nor job."""
