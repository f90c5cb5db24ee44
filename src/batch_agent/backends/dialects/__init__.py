"""Wire formats: pure encoding and incremental decoding."""
