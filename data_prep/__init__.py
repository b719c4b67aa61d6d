"""Raw text to training shards: documents, sentences, token ids, sequences, n-gram masks, memory-mapped files.

Read in the order the data flows: `sources` (which files), `unpacking`, `formats` and `wikitext`, `rows` (what is in
them), `chunks` (the units of work), `duplicates`, `cleaning`, `sentences`, `tokens`, `sequences`, `masking`, `shards`.
`pipeline` takes one chunk of text through them, with `intake` for its documents and `sides` for what is trained on and
what is held out; `workers` runs it for all chunks, `output` and `manifest` keep the folder, and `build_shards` is the
command. `inspect_shards` checks the result with `inspection`; `train_vocab` learns a vocabulary.
"""
