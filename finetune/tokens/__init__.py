"""Examples of any task as token ids and batches."""
