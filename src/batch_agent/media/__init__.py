"""Images and documents on disk: identified, read and rendered. Everything here blocks."""
