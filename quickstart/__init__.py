"""A small corpus and a small task that every installation carries, and the whole road walked over them."""
