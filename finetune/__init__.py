"""Fine-tunes an exported discriminator (or any stock Hugging Face ELECTRA); reports medians over seeds."""
