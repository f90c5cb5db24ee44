"""The nouns: frozen data, errors, and every seam. Nothing here runs anything."""
