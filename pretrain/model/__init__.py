"""The Transformer encoder and its heads in plain torch, used by every model here and copied into exports."""
