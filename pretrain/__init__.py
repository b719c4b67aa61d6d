"""Pre-training with learned replacement sampling."""
