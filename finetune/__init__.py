"""Fine-tuning an exported discriminator on GLUE (and any stock Hugging Face ELECTRA), seeds and medians."""
