"""Turns raw text into training shards: documents, sentences, token ids, sequences, n-gram masks, memory-mapped files.

Read the modules in the order of the data flow: `sources` (which files), `unpacking`, `formats` and `wikitext`, `rows`
(what is in them), `chunks` (the units of work), `minhash`, `pairs` and `duplicates`, `cleaning`, `sentences`, `tokens`,
`sequences`, `masking`, `shards`. `pipeline` runs one chunk of text through these steps and writes its `parts`, one for
training and one held out. `building` does this for all chunks on the `workers` and merges the parts into shards.
`records`, `output` and `manifest` manage the output folder, and `build_shards` is the command. `inspect_shards` checks
the result with `inspection`; `train_vocab` trains a vocabulary.
"""
