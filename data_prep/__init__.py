"""Raw text to training shards: documents, sentences, token ids, sequences, n-gram masks, memory-mapped files.

Read in the order the data flows: `sources` (which files), `unpacking`, `formats` and `wikitext`, `rows` (what is in
them), `chunks` (the units of work), `duplicates`, `cleaning`, `sentences`, `tokens`, `sequences`, `masking`, `shards`.
`pipeline` takes one chunk of text through them to its `parts` of shards, trained on and held out; `building` does so
for all chunks on the `workers` and merges the parts, `records`, `output` and `manifest` keep the folder, and
`build_shards` is the command. `inspect_shards` checks the result with `inspection`; `train_vocab` learns a vocabulary.
"""
