"""Models to and from Hugging Face folders: exports, the code they carry, pairs to start from."""
