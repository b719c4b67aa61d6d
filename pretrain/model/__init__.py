"""The Transformer and its heads, in torch alone: what every model here, and every export, is made of."""
