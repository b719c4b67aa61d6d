"""Fine-tuning an exported discriminator (or any stock Hugging Face ELECTRA) on GLUE and SQuAD, seeds and medians."""
