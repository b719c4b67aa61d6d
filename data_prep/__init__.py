"""Raw text to training shards: documents, sentences, token ids, sequences, n-gram masks, memory-mapped files.

Read in the order the data flows: `sources`, `sentences`, `tokens`, `sequences`, `masking`, `shards`, `manifest`;
`build_shards` calls them in that order.
"""
