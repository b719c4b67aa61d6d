"""Tasks to fine-tune on: what their files look like, what is predicted, how it is scored."""
