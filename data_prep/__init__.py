"""Turns raw text into training shards: documents, sentences, token ids, sequences, n-gram masks, memory-mapped files.

Read the modules in the order of the data flow: `sources` (which files), `planning` (which shards), `unpacking`,
`formats` and `reading` (documents), `minhash` and `duplicates`, `cleaning`, `sentences`, `tokens`, `sequences`,
`masking`, `shards`. `pipeline` runs the text of one shard through these steps, and `building` does so for all shards on
the `workers`. `output` and `manifest` manage the output folder, and `build_shards` is the command. `inspect_shards`
checks the result; `train_vocab` trains a vocabulary.
"""
